//! The crates stand in the layers of `docs/architecture.md`, and the modules of a crate do not import each other in a circle.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use structure::root;

/// The modules that each module imports, with the file that does so.
type Imports = BTreeMap<String, BTreeMap<String, PathBuf>>;

/// The folders of the crates of the workspace.
fn crates() -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, members) = manifest.split_once("members = [").unwrap();
    let (members, _) = members.split_once("\n]").unwrap();
    members.lines().filter_map(|line| line.split('"').nth(1)).map(|folder| root().join(folder)).collect()
}

/// Collects the Rust files below a folder, without those of tests.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    collect(
        folder,
        &|path| !path.file_stem().is_some_and(|name| name == "tests" || name == "test_support"),
        files,
    );
}

/// Collects the Rust files below a folder, without paths that are not wanted.
fn collect(folder: &Path, is_wanted: &impl Fn(&Path) -> bool, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !is_wanted(&path) {
        } else if path.is_dir() {
            collect(&path, is_wanted, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
}

/// The code of a file without comments and without the tests at its end.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    production.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The first names of the paths `crate::name` and `crate::{name, name::…}`.
fn imported(code: &str) -> BTreeSet<String> {
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut names = BTreeSet::new();
    for path in code.split("crate::").skip(1) {
        let Some(tree) = path.strip_prefix('{') else {
            names.insert(name(path));
            continue;
        };
        let mut depth = 1;
        let mut first = true;
        for (at, c) in tree.char_indices() {
            if first && depth == 1 && !c.is_whitespace() {
                names.insert(name(&tree[at..]));
                first = false;
            }
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' => first = depth == 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    names
}

/// The module that each name of `pub use module::Name;` in the root of a crate comes from.
fn reexports(code: &str) -> BTreeMap<String, String> {
    let uses = code.split("pub use ").skip(1).chain(code.split("pub(crate) use ").skip(1));
    let uses = uses.filter_map(|text| text.split(';').next()?.split_once("::"));
    uses.flat_map(|(module, names)| {
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
        names.map(|name| (name.to_owned(), module.to_owned()))
    })
    .collect()
}

/// Returns the imports between the top-level modules of a crate.
fn imports(src: &Path) -> Imports {
    let mut files = Vec::new();
    rust_files(src, &mut files);
    let module_of = |file: &Path| {
        let top = file.strip_prefix(src).unwrap().components().next().unwrap();
        top.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
    };
    let modules: BTreeSet<String> = files.iter().map(|file| module_of(file)).collect();
    let library = src.join("lib.rs");
    let reexports = if library.exists() { reexports(&code(&library)) } else { BTreeMap::new() };
    let mut imports = Imports::new();
    for file in files {
        let module = module_of(&file);
        if module == "lib" || module == "main" {
            continue;
        }
        for name in imported(&code(&file)) {
            let target = if modules.contains(&name) { Some(&name) } else { reexports.get(&name) };
            if let Some(target) = target.filter(|target| **target != module && modules.contains(*target)) {
                imports.entry(module.clone()).or_default().insert(target.clone(), file.clone());
            }
        }
    }
    imports
}

/// The modules on the way from a module back to itself, if there is one.
fn cycle(imports: &Imports, start: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![start.to_owned()]];
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop() {
        for next in imports.get(way.last().unwrap()).into_iter().flat_map(BTreeMap::keys) {
            let longer = [way.as_slice(), std::slice::from_ref(next)].concat();
            if next == start {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push(longer);
            }
        }
    }
    None
}

#[test]
fn modules_of_a_crate_do_not_import_each_other_in_a_circle() {
    let mut edges = 0;
    let mut cycles = BTreeSet::new();
    for folder in crates() {
        let imports = imports(&folder.join("src"));
        edges += imports.values().map(BTreeMap::len).sum::<usize>();
        for module in imports.keys() {
            if let Some(way) = cycle(&imports, module) {
                cycles.insert((way.join(" → "), imports[&way[0]][&way[1]].clone()));
            }
        }
    }
    assert!(cycles.is_empty(), "module → module → …, and the file of the first import: {cycles:#?}");
    assert!(edges > 200, "the script finds too few imports: {edges}");
}

/// Each line of the drawing is a layer: a crate depends only on crates in lines below its own.
#[test]
fn crates_depend_only_on_crates_in_layers_below() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, section) = text.split_once("\n## Crates\n").unwrap();
    let drawing = section.split("```").nth(1).unwrap();
    let mut layers = BTreeMap::new();
    for (height, line) in drawing.lines().rev().enumerate() {
        for name in line.split_whitespace() {
            layers.insert(name.to_owned(), height);
        }
    }
    let mut wrong = Vec::new();
    for folder in crates() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let (head, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap_or((&manifest, ""));
        let name = head.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
        let Some(&layer) = layers.get(name) else {
            wrong.push(format!("{name} is not in the drawing"));
            continue;
        };
        let dependencies = dependencies.split("\n[").next().unwrap();
        for dependency in dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next()) {
            if layers.get(dependency).is_some_and(|below| *below >= layer) {
                wrong.push(format!("{name} depends on {dependency}, which is not below it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A small system does not have each of these programs.
#[test]
fn no_program_is_started_where_a_system_call_does_it() {
    let mut files = Vec::new();
    for folder in crates() {
        // The folders of crates contain those of others, and of builds.
        let is_wanted =
            |path: &Path| path.file_name().is_some_and(|name| name != "target" && name != "node_modules");
        collect(&folder, &is_wanted, &mut files);
    }
    let starts = ["kill", "mkfifo"].map(|program| format!("Command::new(\"{program}\")"));
    files.retain(|file| starts.iter().any(|start| fs::read_to_string(file).unwrap().contains(start)));
    assert!(files.is_empty(), "they start programs: {files:?}");
}
