"""Image classification: binary questions on images, talked about by naming latent pixels."""
