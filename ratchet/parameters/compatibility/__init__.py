"""Files of earlier versions and other systems: nip, TorchRL and Hydra."""
