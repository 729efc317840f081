"""A uniform interface to JAX beyond its public one, the same for every release of JAX.

`aliases` names the types of values; `releases` lists what differs between releases, and has the names that are private
or move, the implementations and parameters of primitives, and the rules of ours for JAX's transformations.

What is known of programs: `walk` has the walks that others are made of, and tells what values depend on, `rewrite`
copies and rewrites programs, `body_inputs` knows the operands of the equations that run bodies, `taps` makes inner
values outputs, `alike` compares programs, `vmap_axes` records which axes `vmap` adds. `dims` evaluates symbolic sizes,
which `dim_text` reads, and checks them without errors. `identity` has mappings and sets of objects that are told apart
by identity.
"""

from jaxport.jaxprs.aliases import Array, Aval, Dim, Effect, Module, Parameters, PythonFunction, Shape, TreeDef, aval_of
from jaxport.jaxprs.dims import CHECKS_OF_SIZES, DECISIONS_ON_SIZES
from jaxport.jaxprs.releases import (
    DIGAMMA_AT_ZERO,
    INFINITE_BESIDE_NAN,
    TESTED,
    Atom,
    ClosedJaxpr,
    DebugInfo,
    DropVar,
    InconclusiveDimensionOperation,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Release,
    Var,
    ad,
    batching,
    check_jaxpr,
    closed,
    closed_call_p,
    concerns_reference,
    dce_jaxpr,
    discharge_state,
    div_p,
    failures_name_untested_jax,
    get_opaque_trace_state,
    internal_mutable_array_effect,
    jaxpr_as_fun,
    known_primitives,
    liveness_rule,
    mlir,
    mul_p,
    nameless,
    native,
    new_jaxpr_eqn,
    of_one_trace,
    parameters,
    partial_eval_rules,
    random_gamma_p,
    reference_of,
    release,
    source_info_util,
    struct_of,
    untested,
    valid_jaxtype,
    varying,
    varying_axes,
    with_parameters,
)
