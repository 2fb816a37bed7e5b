//! The references of kustomizations. kustomize fetches a reference to no file or directory, so kas refuses it before kustomize runs.
//!
//! kustomize does not read the text of the commit, but what kas has understood of it: two parsers of YAML never agree about everything.

use std::collections::{BTreeSet, VecDeque};

use serde_json::Value;

use crate::{
    RenderError, Tree,
    plan::{Job, KUSTOMIZATIONS, is_below, join},
};

/// Keys whose entries are files or directories.
const LISTS: [&str; 6] =
    ["resources", "bases", "components", "crds", "configurations", "patchesStrategicMerge"];
/// Keys with lists whose entries have a `path`.
const WITH_PATH: [&str; 3] = ["patches", "patchesJson6902", "replacements"];
/// Keys with lists whose entries have lists of files.
const GENERATORS: [&str; 2] = ["configMapGenerator", "secretGenerator"];
/// Keys that run programs, or whose files can fetch something, with the reason.
const REFUSED: [(&str, &str); 6] = [
    ("helmCharts", "kas does not fetch charts: commit the chart, and use render: helm"),
    ("helmGlobals", "kas does not fetch charts: commit the chart, and use render: helm"),
    ("helmChartInflationGenerator", "kas does not fetch charts: commit the chart, and use render: helm"),
    ("generators", "kas runs no plugins of kustomize: use configMapGenerator or secretGenerator"),
    ("transformers", "kas runs no plugins of kustomize: use the keys of the kustomization itself"),
    ("validators", "kas runs no plugins of kustomize"),
];
/// The most directories of one job.
const MAX_DIRECTORIES: usize = 200;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The files that kustomize may read.
    Complete(Tree),
    /// These files or directories of the repository are needed, too. They may not exist either.
    Missing(BTreeSet<String>),
}

/// Looks at all kustomizations that a job reaches. `known` are the files and directories that were read from the repository: what is
/// missing below them does not exist.
///
/// # Errors
///
/// A kustomization is not YAML, refers to something outside of the repository, or has a key that kas refuses.
pub fn check(job: &Job, tree: &Tree, known: &BTreeSet<String>) -> Result<Checked, RenderError> {
    let mut kustomizations = Tree::new();
    let mut missing = BTreeSet::new();
    let mut reached = BTreeSet::from([job.directory.clone()]);
    let mut queue = VecDeque::from([job.directory.clone()]);
    while let Some(directory) = queue.pop_front() {
        let file =
            KUSTOMIZATIONS.iter().map(|name| join(&directory, name)).find(|path| tree.contains_key(path));
        // A directory without one is an error of kustomize itself.
        let Some(file) = file else { continue };
        let refused = |what: String| RenderError(format!("{file}: {what}"));
        let kustomization = parse(&tree[&file]).map_err(refused)?;
        kustomizations.insert(file.clone(), kustomization.to_string().into_bytes());
        for reference in references(&kustomization).map_err(refused)? {
            let path = resolve(&directory, &reference).ok_or_else(|| {
                refused(format!(
                    "{reference:?} leads out of the repository, and kas fetches nothing for kustomize"
                ))
            })?;
            if tree.contains_key(&path) {
                continue;
            }
            if has_directory(tree, &path) {
                if reached.insert(path.clone()) {
                    queue.push_back(path);
                }
                continue;
            }
            if known.iter().any(|known| is_below(&path, known)) {
                return Err(refused(format!(
                    "{reference:?} is neither a file nor a directory of the commit, and kas fetches nothing for kustomize"
                )));
            }
            missing.insert(path);
        }
        if reached.len() > MAX_DIRECTORIES {
            return Err(refused(format!("over {MAX_DIRECTORIES} directories are needed")));
        }
    }
    if !missing.is_empty() {
        return Ok(Checked::Missing(missing));
    }
    let is_kustomization =
        |path: &str| path.rsplit('/').next().is_some_and(|name| KUSTOMIZATIONS.contains(&name));
    let files = tree.iter().filter(|(path, _)| !is_kustomization(path));
    kustomizations.extend(files.map(|(path, content)| (path.clone(), content.clone())));
    Ok(Checked::Complete(kustomizations))
}

fn parse(content: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(content).map_err(|_| "it is not text".to_owned())?;
    if text.contains("<<") {
        return Err("kas does not know what a merge key (<<) adds: write the keys out".to_owned());
    }
    let parsed: Value =
        serde_saphyr::from_str(text).map_err(|error| format!("it is not valid YAML: {error}"))?;
    if parsed.is_object() { Ok(parsed) } else { Err("it is not a kustomization".to_owned()) }
}

/// Returns the files and directories that a kustomization names.
fn references(parsed: &Value) -> Result<Vec<String>, String> {
    if let Some((key, why)) = REFUSED.iter().find(|(key, _)| values(parsed, key).next().is_some()) {
        return Err(format!("{key}: {why}"));
    }
    let list = |key: &'static str| items(parsed, key);
    let mut found = Vec::new();
    // A text of several lines is a patch itself.
    let mut add =
        |value: &Value| found.extend(value.as_str().filter(|text| !text.contains('\n')).map(str::to_owned));
    LISTS.iter().flat_map(|key| list(key)).for_each(&mut add);
    WITH_PATH.iter().flat_map(|key| list(key)).flat_map(|entry| values(entry, "path")).for_each(&mut add);
    values(parsed, "openapi").flat_map(|openapi| values(openapi, "path")).for_each(&mut add);
    for entry in GENERATORS.iter().flat_map(|key| list(key)) {
        values(entry, "env").chain(items(entry, "envs")).for_each(&mut add);
        for file in items(entry, "files").filter_map(Value::as_str) {
            // `name=path`, or a path.
            add(&Value::from(file.split_once('=').map_or(file, |(_, path)| path)));
        }
    }
    Ok(found)
}

/// Returns the values of a key in any spelling: decoders of Go do not distinguish upper and lower case.
fn values<'a>(object: &'a Value, key: &'static str) -> impl Iterator<Item = &'a Value> {
    let entries = object.as_object().into_iter().flatten();
    entries.filter(move |(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
}

/// Returns the items of the lists with a key.
fn items<'a>(object: &'a Value, key: &'static str) -> impl Iterator<Item = &'a Value> {
    values(object, key).filter_map(Value::as_array).flatten()
}

/// Returns the path from the root of the repository, or `None` if it leads out of it or is a URL.
fn resolve(directory: &str, reference: &str) -> Option<String> {
    if reference.starts_with('/') || reference.contains("://") {
        return None;
    }
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in reference.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn has_directory(tree: &Tree, path: &str) -> bool {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    tree.range(prefix.clone()..).next().is_some_and(|(file, _)| file.starts_with(&prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Tool;

    fn check_files(files: &[(&str, &str)], known: &[&str]) -> Result<Vec<String>, String> {
        let tree = files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect();
        let job = Job { tool: Tool::Kustomize, directory: "prod".to_owned() };
        let known = known.iter().map(|path| (*path).to_owned()).collect();
        match check(&job, &tree, &known).map_err(|error| error.to_string())? {
            Checked::Complete(_) => Ok(Vec::new()),
            Checked::Missing(paths) => Ok(paths.into_iter().collect()),
        }
    }

    #[test]
    fn bases_are_read_until_nothing_is_missing() {
        let prod =
            ("prod/kustomization.yaml", "resources: [../base, app.yaml]\npatches: [{path: patch.yaml}]");
        let (app, patch) = (("prod/app.yaml", ""), ("prod/patch.yaml", ""));
        assert_eq!(check_files(&[prod, app, patch], &["prod"]).unwrap(), ["base"]);
        let base = (
            "base/Kustomization",
            "components: [../parts/tls]\nconfigMapGenerator: [{name: a, files: [a=../x.conf]}]",
        );
        assert_eq!(
            check_files(&[prod, app, patch, base], &["prod", "base"]).unwrap(),
            ["parts/tls", "x.conf"]
        );
        let rest = [("parts/tls/kustomization.yaml", "resources: []"), ("x.conf", "")];
        let all = [&[prod, app, patch, base], &rest[..]].concat();
        let known = ["prod", "base", "parts/tls", "x.conf"];
        assert_eq!(check_files(&all, &known).unwrap(), [""; 0]);
        let error = check_files(&[prod, app], &["prod"]).unwrap_err();
        assert_eq!(
            error,
            "prod/kustomization.yaml: \"patch.yaml\" is neither a file nor a directory of the commit, and kas fetches nothing for \
             kustomize"
        );
    }

    /// A user who can commit must not make kas send requests, or read files of its machine.
    #[test]
    fn what_kustomize_would_fetch_or_run_is_refused() {
        for (text, expected) in [
            ("resources: ['https://example.com/a.yaml']", "leads out of the repository"),
            ("resources: ['github.com/org/repo?ref=main']", "neither a file nor a directory"),
            ("resources: ['git@github.com:org/repo.git']", "neither a file nor a directory"),
            ("bases: ['git::https://example.com/x']", "leads out of the repository"),
            ("components: [../../x]", "leads out of the repository"),
            ("resources: [/etc/passwd]", "leads out of the repository"),
            ("crds: ['http://169.254.169.254/']", "leads out of the repository"),
            ("configurations: ['http://localhost/x']", "leads out of the repository"),
            ("openapi: {path: 'http://localhost/x'}", "leads out of the repository"),
            ("patches: [{path: 'http://localhost/x'}]", "leads out of the repository"),
            ("patchesStrategicMerge: ['http://localhost/x']", "leads out of the repository"),
            ("replacements: [{path: 'http://localhost/x'}]", "leads out of the repository"),
            ("configMapGenerator: [{files: ['a=http://localhost/x']}]", "leads out of the repository"),
            ("secretGenerator: [{envs: ['http://localhost/x']}]", "leads out of the repository"),
            ("secretGenerator: [{env: ../../x}]", "leads out of the repository"),
            ("helmCharts: [{name: a, repo: 'https://example.com'}]", "helmCharts: kas does not fetch charts"),
            ("generators: [x.yaml]", "kas runs no plugins"),
            ("transformers: ['{apiVersion: builtin}']", "kas runs no plugins"),
            ("validators: []", "kas runs no plugins"),
            ("Resources: ['https://example.com/a.yaml']", "leads out of the repository"),
            ("patches: [{PATH: 'http://localhost/x'}]", "leads out of the repository"),
            ("HELMCHARTS: []", "helmCharts: kas does not fetch charts"),
            ("x: &x {resources: ['http://localhost/x']}\n<<: *x", "merge key"),
            ("- a", "not a kustomization"),
            ("a: [", "not valid YAML"),
        ] {
            let error = check_files(&[("prod/kustomization.yaml", text)], &["prod", ""]).unwrap_err();
            assert!(
                error.starts_with("prod/kustomization.yaml: ") && error.contains(expected),
                "{text}: {error}"
            );
        }
        // A base is as dangerous as the kustomization itself.
        let base = ("base/kustomization.yaml", "resources: ['https://example.com/a']");
        let prod = ("prod/kustomization.yaml", "resources: [../base]");
        assert!(check_files(&[prod, base], &[""]).unwrap_err().starts_with("base/kustomization.yaml"));
        // Two that name each other are an error of kustomize, and no endless loop.
        let cycle = ("base/kustomization.yaml", "resources: [../prod]");
        assert_eq!(check_files(&[prod, cycle], &[""]).unwrap(), [""; 0]);
    }

    /// `!!binary` is a URL for kustomize, although the commit has a file of that name.
    #[test]
    fn kustomize_reads_what_kas_has_understood() {
        let url = "aHR0cDovLzEyNy4wLjAuMTo4MDk5L3h4";
        let tree = |text: &str| {
            let files = [
                ("prod/kustomization.yaml", text),
                (&*format!("prod/{url}"), ""),
                ("x/Kustomization", "hidden: true"),
            ];
            files
                .into_iter()
                .map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()))
                .collect::<Tree>()
        };
        let job = Job { tool: Tool::Kustomize, directory: "prod".to_owned() };
        let known = BTreeSet::from([String::new()]);
        let error = check(&job, &tree(&format!("resources: [!!binary {url}]\n")), &known).unwrap_err();
        assert!(error.to_string().contains("leads out of the repository"), "{error}");
        let Ok(Checked::Complete(files)) = check(&job, &tree("namePrefix: 'a: b'\n"), &known) else {
            panic!()
        };
        assert_eq!(files["prod/kustomization.yaml"], br#"{"namePrefix":"a: b"}"#);
        assert!(!files.contains_key("x/Kustomization"), "nobody has checked it");
        assert!(files.contains_key(&format!("prod/{url}")));
    }

    #[test]
    fn patch_in_the_kustomization_is_no_path() {
        let text = "patches:\n- patch: |-\n    - op: add\n      path: /x\n  target: {kind: A}\npatchesStrategicMerge:\n- |-\n  kind: A\n  a: b\n";
        assert_eq!(check_files(&[("prod/kustomization.yaml", text)], &[""]).unwrap(), [""; 0]);
    }
}
