/// A module whose weights under these paths are trained; the others are not.
pub fn frozen<M: Module>(module: M, trained: &[&str]) -> M {
    module.map(&mut Freezing { path: Vec::new(), trained })
}

/// Where in the module the weight is that is marked next.
struct Freezing<'a> {
    path: Vec<String>,
    trained: &'a [&'a str],
}

impl ModuleMapper for Freezing<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, weight: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = format!("{}.", self.path.join("."));
        let is_trained = self.trained.iter().any(|part| path.starts_with(&format!("{part}.")));
        if is_trained { weight } else { weight.set_require_grad(false) }
    }
}
