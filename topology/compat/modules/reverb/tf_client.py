"""`reverb.tf_client`."""

from topology.compat.tensorflow.client import TFClient

__all__ = ["TFClient"]
