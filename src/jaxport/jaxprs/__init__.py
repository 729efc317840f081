"""What the package needs of JAX beyond its public interface, the same for every release of JAX.

`versions` says what differs between releases; `names` has the names that are private or move, `definitions` JAX's own
definitions of primitives; `parameters` reads and makes the parameters of primitives; `rules` registers what a primitive
of ours does under JAX's transformations; `implementations` says what a primitive means, and `defaults` which of
its parameters change nothing.
"""

from jaxport.jaxprs.names import (
    ClosedJaxpr,
    DebugInfo,
    DropVar,
    InconclusiveDimensionOperation,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    check_jaxpr,
    closed,
    closed_call_p,
    convert_element_type_p,
    discharge_state,
    get_opaque_trace_state,
    internal_mutable_array_effect,
    jaxpr_as_fun,
    jaxprs_in_params,
    known_primitives,
    new_jaxpr_eqn,
    random_gamma_p,
    source_info_util,
    valid_jaxtype,
)
from jaxport.jaxprs.parameters import native, parameters, with_parameters
from jaxport.jaxprs.rules import ad, batching, dce_jaxpr, liveness_rule, mlir, partial_eval_rules
from jaxport.jaxprs.versions import (
    DIGAMMA_AT_ZERO,
    INFINITE_BESIDE_NAN,
    TESTED,
    Release,
    failures_name_untested_jax,
    release,
    untested,
)
