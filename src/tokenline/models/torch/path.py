"""Which instructions PyTorch computes with on a device. Results of two paths may differ in their last bits."""

import platform

import torch


def instruction_path(device: torch.device) -> tuple[object, ...]:
    """Facts that tell one path from another: the CPU's vector instructions, or the accelerator and its libraries."""
    settings = (torch.__version__, device.type, torch.get_float32_matmul_precision())
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        libraries = (torch.version.cuda, torch.version.hip, torch.backends.cudnn.version())
        return *settings, properties.name, properties.major, properties.minor, *libraries
    if device.type == "mps":
        return *settings, platform.mac_ver()[0], platform.machine()
    there = sorted(name for name, is_there in torch.cpu.get_capabilities().items() if is_there is True)
    return *settings, torch.backends.cpu.get_cpu_capability(), torch.backends.mkldnn.enabled, *there
