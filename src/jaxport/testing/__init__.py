"""What the tests here and a plugin author's tests share."""

from jaxport.testing.checking import check as check, f32 as f32, f64 as f64, i32 as i32, spec as spec
