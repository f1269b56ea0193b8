"""`reverb.tf_client`."""

from topology.compat.reverb.missing import need_tensorflow

need_tensorflow("reverb.TFClient", "reverb.Client")

from topology.compat.tensorflow.client import TFClient  # noqa: E402 - it imports TensorFlow

__all__ = ["TFClient"]
