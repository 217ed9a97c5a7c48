"""Reading and merging of parameters: YAML files, layers, plug-ins and error messages."""
