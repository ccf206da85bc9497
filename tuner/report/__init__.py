"""Reports: ladders, few configs for many shapes, figures of studies, comparisons."""
