"""The rules, one file per family. Importing this package registers them."""

from jaxport.export.rules import (
    calls as calls,
    elementwise as elementwise,
    linear as linear,
    reduce as reduce,
    shape as shape,
)
