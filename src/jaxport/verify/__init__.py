"""Run both sides of a conversion on the same inputs, compare them, and find the first block that diverges."""

from jaxport.verify.comparing import Difference, difference
from jaxport.verify.importing import verify_program
from jaxport.verify.report import Divergence, Output, Report
from jaxport.verify.running import Sampler
from jaxport.verify.verifying import verify, verify_file

__all__ = [
    "Difference",
    "Divergence",
    "Output",
    "Report",
    "Sampler",
    "difference",
    "verify",
    "verify_file",
    "verify_program",
]
