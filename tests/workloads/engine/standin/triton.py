"""A stand-in for Triton: the release in the name of its folder of tuned kernels."""

__version__ = "3.7.1"
