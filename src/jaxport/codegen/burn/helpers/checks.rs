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
