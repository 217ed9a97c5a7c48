"""Forms of deployments: what Prefect's UI asks for, made from the parameters that there are."""
