"""A uniform interface to JAX beyond its public one, the same for every release of JAX.

`aliases` names the types of values; `versions` lists what differs between releases; `names` has the names that are
private or move, `definitions` JAX's own definitions of primitives; `primitives` asks for their implementations, and
registers the rules of ours for JAX's transformations.

What is known of programs: `walk` has the walks that others are made of, `dataflow` tells what values depend on, `rewrite`
copies and rewrites programs, `body_inputs` knows the operands of the equations that run bodies, `taps` makes inner values
outputs, `alike` compares programs, `vmap_axes` records which axes `vmap` adds; `parameters` reads and makes the parameters
of primitives. `dims` evaluates symbolic sizes, which `dim_text` reads, and `sizes` checks them without errors. `identity`
has mappings and sets of objects that are told apart by identity.
"""

from jaxport.jaxprs.aliases import (
    Array,
    Aval,
    Dim,
    Effect,
    Module,
    Parameters,
    PythonFunction,
    Shape,
    TreeDef,
    aval_of,
)
from jaxport.jaxprs.releases.names import (
    Atom,
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
    concerns_reference,
    convert_element_type_p,
    discharge_state,
    get_opaque_trace_state,
    internal_mutable_array_effect,
    jaxpr_as_fun,
    known_primitives,
    nameless,
    new_jaxpr_eqn,
    of_one_trace,
    random_gamma_p,
    reference_of,
    source_info_util,
    struct_of,
    valid_jaxtype,
    varying,
    varying_axes,
)
from jaxport.jaxprs.releases.parameters import native, parameters, with_parameters
from jaxport.jaxprs.releases.primitives import ad, batching, dce_jaxpr, liveness_rule, mlir, partial_eval_rules
from jaxport.jaxprs.releases.size_checks import CHECKS_OF_SIZES, DECISIONS_ON_SIZES
from jaxport.jaxprs.releases.versions import (
    DIGAMMA_AT_ZERO,
    INFINITE_BESIDE_NAN,
    TESTED,
    Release,
    failures_name_untested_jax,
    release,
    untested,
)
