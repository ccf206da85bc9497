"""What authors of kernels use beside the declarations themselves: rules that many kernels share."""
