/// Says what is wrong with the shape of an input; `declared` has the names of its sizes, `needed` what they are here.
pub fn check_shape<const D: usize>(
    name: &str,
    shape: [usize; D],
    needed: [usize; D],
    declared: &str,
) -> Result<(), String> {
    if shape != needed {
        return Err(format!("`{name}` has the shape {shape:?}, but needs {declared}, such as {needed:?}"));
    }
    if shape.contains(&0) {
        return Err(format!("`{name}` has the shape {shape:?}, but no size of {declared} may be 0"));
    }
    Ok(())
}

/// Says what is wrong with the shape of an input that may be empty along an axis, as a cache is when it begins.
pub fn check_cache<const D: usize>(
    name: &str,
    shape: [usize; D],
    needed: [usize; D],
    declared: &str,
    axis: usize,
) -> Result<(), String> {
    let mut rest = shape;
    if shape == needed && shape[axis] == 0 {
        rest[axis] = 1;
        return check_shape(name, rest, rest, declared);
    }
    check_shape(name, shape, needed, declared)
}

/// Says that a size is not one that the model accepts.
pub fn check_size(name: &str, size: usize, least: usize, most: usize) -> Result<(), String> {
    if size < least {
        return Err(format!("`{name}` is {size}, but has to be at least {least}"));
    }
    if size > most {
        return Err(format!("`{name}` is {size}, but has to be at most {most}"));
    }
    Ok(())
}

/// The sizes that an input has as its elements.
pub fn sizes_in<const N: usize>(numbers: &Tensor<1, Int>) -> [usize; N] {
    let sizes: Vec<usize> = numbers.to_data().iter::<i64>().map(|size| size as usize).collect();
    sizes.try_into().expect("a size for each element")
}

/// Says that an element of an input is not a size.
pub fn check_elements(name: &str, numbers: &Tensor<1, Int>, least: i64) -> Result<(), String> {
    let numbers: Vec<i64> = numbers.to_data().iter::<i64>().collect();
    if numbers.iter().any(|&number| number < least) {
        return Err(format!("`{name}` is {numbers:?}, but its elements have to be at least {least}"));
    }
    Ok(())
}

/// Says that the sizes in an input are not what they have to be; `declared` has their names.
pub fn check_sizes<const N: usize>(
    name: &str,
    sizes: [usize; N],
    needed: [usize; N],
    declared: &str,
) -> Result<(), String> {
    if sizes != needed {
        return Err(format!("`{name}` is {sizes:?}, but has to be {declared}, such as {needed:?}"));
    }
    Ok(())
}

/// Says that two sizes are not equal.
pub fn check_equal(left: &str, is: usize, right: &str, needed: usize) -> Result<(), String> {
    if is != needed {
        return Err(format!("`{left}` is {is}, but has to be {right}, which is {needed}"));
    }
    Ok(())
}

/// Says that a size is smaller than another one.
pub fn check_at_least(left: &str, is: usize, right: &str, needed: usize) -> Result<(), String> {
    if is < needed {
        return Err(format!("`{left}` is {is}, but has to be at least {right}, which is {needed}"));
    }
    Ok(())
}
