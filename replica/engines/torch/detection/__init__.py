"""What a detector of two stages does besides convolutions: boxes, proposals, regions, its loss.

torchvision has operators of the same kind, which its wheels have for PyTorch's CUDA builds alone.
"""
