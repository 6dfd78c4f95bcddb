"""The thin layer over megatron-core: one code path on gloo (CPU) and NCCL (GPU).

`build` makes process groups and modules, `mapping` carries Hugging Face weights in and out, `model` owns a trained model with
its optimizer, `cpu` lets megatron-core run on a machine without CUDA. Importing this package imports megatron-core (seconds).
"""

import warnings

with warnings.catch_warnings():
    # megatron-core announces each missing optional kernel library at import; none of them is used here.
    warnings.simplefilter("ignore")
    import megatron.core
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer  # noqa: F401
