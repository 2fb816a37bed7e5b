//! The references between the modules of a crate.

use crate::modules::{self, EXTERNAL, Module};
use std::{collections::BTreeSet, path::Path};

/// The modules of a library or a program.
pub struct SourceTree {
    pub modules: Vec<Module>,
}

/// A module names another one, or an item of it. Both are indices of `SourceTree::modules`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleReference {
    pub from: usize,
    /// The module that declares the item, also if another one exports it with `pub use`.
    pub to: usize,
}

/// `pub use` of `pub use` of …: there are no more of them in a row.
const MAX_REEXPORTS: usize = 16;

impl SourceTree {
    /// Reads the modules below the first file of a library or a program.
    pub fn read(root: &Path) -> Self {
        Self { modules: modules::read(root) }
    }

    /// All references between two modules, each once.
    pub fn references(&self) -> Vec<ModuleReference> {
        let mut references = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            for path in module.mentions.iter().chain(&module.globs) {
                let to = self.resolve(from, path, MAX_REEXPORTS);
                references.extend(to.map(|to| ModuleReference { from, to }));
            }
        }
        references.retain(|reference| reference.from != reference.to);
        references.sort_unstable();
        references.dedup();
        references
    }

    /// The names of other crates in the paths of a module, and other names that stand for nothing in this crate.
    pub fn foreign_names(&self, module: usize) -> BTreeSet<&str> {
        let paths = self.modules[module].mentions.iter().chain(&self.modules[module].globs);
        let foreign = paths.filter(|path| self.resolve(module, path, MAX_REEXPORTS).is_none());
        foreign.filter_map(|path| path.iter().find(|name| *name != EXTERNAL)).map(String::as_str).collect()
    }

    /// The name of a module as in paths of Rust, without `crate`.
    pub fn name(&self, module: usize) -> String {
        self.modules[module].path.join("::")
    }

    /// Returns the module that declares what a path stands for, and `None` for paths of other crates.
    fn resolve(&self, from: usize, path: &[String], reexports: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => 0,
            "super" => self.modules[from].parent?,
            "self" => from,
            _ => return self.declaring(from, path, reexports),
        };
        // An item that a macro makes is found nowhere: it belongs to the module of its path.
        self.declaring(start, rest, reexports).or_else(|| (rest.len() == 1).then_some(start))
    }

    /// Follows a path down from a module, through its children and its imports.
    fn declaring(&self, id: usize, path: &[String], reexports: usize) -> Option<usize> {
        let Some((name, rest)) = path.split_first() else { return Some(id) };
        let module = &self.modules[id];
        if name == "super" {
            return self.declaring(module.parent?, rest, reexports);
        }
        let child = module.children.get(name);
        if let Some(child) = child.filter(|_| !rest.is_empty()) {
            return self.declaring(*child, rest, reexports).or(Some(*child));
        }
        if module.items.contains(name) {
            return Some(id);
        }
        let left = reexports.checked_sub(1)?;
        // `use handle::handle` imports a function of the child with the same name.
        if let Some(import) = module.imports.get(name).filter(|import| import.first() != Some(name)) {
            return self.resolve(id, &[import, rest].concat(), left);
        }
        child.copied().or_else(|| {
            let globs = module.globs.iter().filter_map(|glob| self.resolve(id, glob, left));
            globs.filter(|target| *target != id).find_map(|target| self.declaring(target, path, left))
        })
    }
}
