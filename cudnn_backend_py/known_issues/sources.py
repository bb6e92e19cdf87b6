"""Sources and measurements that several rows of the table of known issues cite."""

__all__ = ["BLACKWELL", "FRONTEND_SURFACE", "MEASURED_ON_GPU", "MEASURED_WITHOUT_GPU", "ON_SM90"]

MEASURED_ON_GPU = "tests/gpu/known_issues/test_known_issues_on_gpu.py"
MEASURED_WITHOUT_GPU = "tests/library/known_issues/test_faults.py"  # with described GPUs
ON_SM90 = "measured with 9.19.0 and 9.28.0 on sm_90"
BLACKWELL = (100, 103, 107)
FRONTEND_SURFACE = (
    "https://github.com/NVIDIA/cudnn-frontend/blob/05067cacebac48c00ab1ce6c9616cadae40ab74f"
    "/include/cudnn_frontend/node/sdpa_support_surface.h"
)
