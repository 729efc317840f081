"""Code that a user of jaxport would write: the models that the project exports and checks."""
