//! Kustomizations: their keys, and the files and directories that they name. kustomize fetches a reference to no file or directory, so
//! kas refuses it before kustomize runs.
//!
//! kustomize does not read the text of the commit, but what kas has understood of it: two parsers of YAML never agree about everything.
//! The types below are the list of the keys that kas allows, which are exact: decoders of Go take `fileſ` (U+017F) for `files`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    FileTree, RenderError,
    plan::{Job, KUSTOMIZATIONS, is_below, join},
};

/// The most directories of one job.
const MAX_DIRECTORIES: usize = 200;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The files that kustomize may read.
    Complete(FileTree),
    /// These files or directories of the repository are needed, too. They may not exist either.
    Missing(BTreeSet<String>),
}

/// Looks at all kustomizations that a job reaches. `known` are the files and directories that were read from the repository: what is
/// missing below them does not exist.
///
/// # Errors
///
/// A kustomization is not YAML, refers to something outside of the repository, or has a key that kas refuses.
pub fn check(job: &Job, tree: &FileTree, known: &BTreeSet<String>) -> Result<Checked, RenderError> {
    let mut kustomizations = FileTree::new();
    let mut missing = BTreeSet::new();
    let mut reached = BTreeSet::from([job.directory.clone()]);
    let mut queue = VecDeque::from([job.directory.clone()]);
    while let Some(directory) = queue.pop_front() {
        let file =
            KUSTOMIZATIONS.iter().map(|name| join(&directory, name)).find(|path| tree.contains_key(path));
        // A directory without one is an error of kustomize itself.
        let Some(file) = file else { continue };
        let refused = |what: String| RenderError::refused(format!("{file}: {what}"));
        let kustomization =
            parse(&file, &tree[&file]).map_err(|error| RenderError::refused(error.to_string()))?;
        kustomizations.insert(file.clone(), kustomization.to_json());
        for reference in kustomization.references() {
            let path = resolve(&directory, reference).ok_or_else(|| {
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

fn parse(file: &str, content: &[u8]) -> Result<Kustomization, KustomizationError> {
    let text =
        std::str::from_utf8(content).map_err(|_| KustomizationError::NotText { file: file.to_owned() })?;
    if let Some(line) = text.lines().position(|line| line.contains("<<")) {
        let line = line + 1;
        return Err(KustomizationError::MergeKey { file: file.to_owned(), line });
    }
    let parsed: Kustomization = settings::parse(Path::new(file), text).map_err(|error| {
        let error = error.to_string();
        // The list of all other keys helps nobody.
        KustomizationError::Yaml(error.split(", expected one of").next().unwrap_or_default().to_owned())
    })?;
    match parsed.refused() {
        Some((key, reason)) => Err(KustomizationError::RefusedKey { file: file.to_owned(), key, reason }),
        None => Ok(parsed),
    }
}

/// A kustomization that kas does not give to kustomize. Its author mends it.
#[derive(Debug, thiserror::Error)]
enum KustomizationError {
    #[error("{file}: it is not text")]
    NotText { file: String },
    #[error("{file}:{line}: kas does not know what a merge key (<<) adds: write the keys out")]
    MergeKey { file: String, line: usize },
    /// With its place.
    #[error("{0}")]
    Yaml(String),
    #[error("{file}: {key}: {reason}")]
    RefusedKey { file: String, key: &'static str, reason: &'static str },
}

/// A kustomization or a component.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Kustomization {
    api_version: Scalar,
    kind: Scalar,
    metadata: Option<Metadata>,
    openapi: Option<OpenApi>,
    name_prefix: Scalar,
    name_suffix: Scalar,
    namespace: Scalar,
    common_labels: Option<Texts>,
    labels: Option<Vec<Label>>,
    common_annotations: Option<Texts>,
    patches_strategic_merge: Option<Vec<String>>,
    #[serde(rename = "patchesJson6902")]
    patches_json6902: Option<Vec<Patch>>,
    patches: Option<Vec<Patch>>,
    images: Option<Vec<Image>>,
    image_tags: Option<Vec<Image>>,
    replacements: Option<Vec<Replacement>>,
    replicas: Option<Vec<Replica>>,
    vars: Option<Vec<Variable>>,
    sort_options: Option<SortOptions>,
    resources: Option<Vec<String>>,
    components: Option<Vec<String>>,
    crds: Option<Vec<String>>,
    bases: Option<Vec<String>>,
    config_map_generator: Option<Vec<Generator>>,
    secret_generator: Option<Vec<Generator>>,
    generator_options: Option<GeneratorOptions>,
    configurations: Option<Vec<String>>,
    build_metadata: Option<Vec<String>>,
    // The keys that kas refuses with a reason of their own.
    helm_globals: Option<Value>,
    helm_charts: Option<Value>,
    helm_chart_inflation_generator: Option<Value>,
    generators: Option<Value>,
    transformers: Option<Value>,
    validators: Option<Value>,
}

/// A value without keys.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(untagged)]
enum Scalar {
    #[default]
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

/// The key of a label or an annotation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String")]
struct AsciiKey(String);

/// Labels or annotations.
type Texts = BTreeMap<AsciiKey, Scalar>;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Metadata {
    name: Scalar,
    namespace: Scalar,
    labels: Option<Texts>,
    annotations: Option<Texts>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct OpenApi {
    version: Scalar,
    path: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Label {
    pairs: Option<Texts>,
    include_selectors: Scalar,
    include_templates: Scalar,
    fields: Option<Vec<FieldSpec>>,
}

/// A field of objects. Its path is none of a file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct FieldSpec {
    group: Scalar,
    version: Scalar,
    kind: Scalar,
    path: Scalar,
    create: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Patch {
    path: Option<String>,
    patch: Scalar,
    target: Option<Selector>,
    options: Option<PatchOptions>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PatchOptions {
    allow_name_change: Scalar,
    allow_kind_change: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Selector {
    group: Scalar,
    version: Scalar,
    kind: Scalar,
    name: Scalar,
    namespace: Scalar,
    annotation_selector: Scalar,
    label_selector: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Image {
    name: Scalar,
    new_name: Scalar,
    tag_suffix: Scalar,
    new_tag: Scalar,
    digest: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Replacement {
    path: Option<String>,
    source: Option<ReplacementSource>,
    source_value: Scalar,
    targets: Option<Vec<ReplacementTarget>>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ReplacementSource {
    group: Scalar,
    version: Scalar,
    kind: Scalar,
    name: Scalar,
    namespace: Scalar,
    field_path: Scalar,
    options: Option<FieldOptions>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ReplacementTarget {
    select: Option<Selector>,
    reject: Option<Vec<Selector>>,
    field_paths: Option<Vec<Scalar>>,
    options: Option<FieldOptions>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct FieldOptions {
    delimiter: Scalar,
    index: Scalar,
    encoding: Scalar,
    create: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Replica {
    name: Scalar,
    count: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Variable {
    name: Scalar,
    objref: Option<ObjectReference>,
    fieldref: Option<FieldReference>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ObjectReference {
    api_version: Scalar,
    group: Scalar,
    version: Scalar,
    kind: Scalar,
    name: Scalar,
    namespace: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FieldReference {
    field_path: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SortOptions {
    order: Scalar,
    legacy_sort_options: Option<LegacySortOptions>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct LegacySortOptions {
    order_first: Option<Vec<Scalar>>,
    order_last: Option<Vec<Scalar>>,
}

/// A generator of a ConfigMap or a Secret.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Generator {
    namespace: Scalar,
    name: Scalar,
    behavior: Scalar,
    literals: Option<Vec<Scalar>>,
    files: Option<Vec<String>>,
    envs: Option<Vec<String>>,
    env: Option<String>,
    options: Option<GeneratorOptions>,
    r#type: Scalar,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GeneratorOptions {
    labels: Option<Texts>,
    annotations: Option<Texts>,
    disable_name_suffix_hash: Scalar,
    immutable: Scalar,
}

impl TryFrom<String> for AsciiKey {
    type Error = &'static str;

    fn try_from(key: String) -> Result<Self, Self::Error> {
        key.is_ascii().then_some(Self(key)).ok_or("a key must consist of ASCII characters")
    }
}

impl Kustomization {
    /// Returns a key that runs programs, or whose files can fetch something, with the reason why kas refuses it.
    fn refused(&self) -> Option<(&'static str, &'static str)> {
        const CHARTS: &str = "kas does not fetch charts: commit the chart, and use render: helm";
        const PLUGINS: &str = "kas runs no plugins of kustomize";
        let refused = [
            (&self.helm_charts, "helmCharts", CHARTS),
            (&self.helm_globals, "helmGlobals", CHARTS),
            (&self.helm_chart_inflation_generator, "helmChartInflationGenerator", CHARTS),
            (
                &self.generators,
                "generators",
                "kas runs no plugins of kustomize: use configMapGenerator or secretGenerator",
            ),
            (
                &self.transformers,
                "transformers",
                "kas runs no plugins of kustomize: use the keys of the kustomization itself",
            ),
            (&self.validators, "validators", PLUGINS),
        ];
        refused.into_iter().find(|(value, ..)| value.is_some()).map(|(_, key, why)| (key, why))
    }

    /// Returns the files and directories that the kustomization names.
    fn references(&self) -> impl Iterator<Item = &str> {
        let lists = [&self.resources, &self.bases, &self.components, &self.crds, &self.configurations];
        let lists = lists.into_iter().flatten().flatten();
        // A text of several lines is a patch itself, which is no URL either.
        let merges = self.patches_strategic_merge.iter().flatten().filter(|text| !text.contains('\n'));
        let patches = [&self.patches, &self.patches_json6902].into_iter().flatten().flatten();
        let patches = patches.filter_map(|patch| patch.path.as_ref());
        let replacements = self.replacements.iter().flatten().filter_map(|each| each.path.as_ref());
        let openapi = self.openapi.iter().filter_map(|openapi| openapi.path.as_ref());
        let generators = [&self.config_map_generator, &self.secret_generator].into_iter().flatten().flatten();
        let environments =
            generators.clone().flat_map(|generator| generator.envs.iter().flatten().chain(&generator.env));
        // `name=path`, or a path.
        let files = generators
            .flat_map(|generator| generator.files.iter().flatten())
            .map(|file| file.split_once('=').map_or(&**file, |(_, path)| path));
        let all = lists.chain(merges).chain(patches).chain(replacements).chain(openapi).chain(environments);
        all.map(String::as_str).chain(files)
    }

    /// Returns the kustomization as kustomize reads it.
    fn to_json(&self) -> Vec<u8> {
        let mut value = serde_json::to_value(self).expect("it has keys that are text");
        remove_nulls(&mut value);
        value.to_string().into_bytes()
    }
}

/// Removes the keys that are not set.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.retain(|_, value| !value.is_null());
            entries.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
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

fn has_directory(tree: &FileTree, path: &str) -> bool {
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
            ("resources: [\"https://example.com/a\\n\"]", "leads out of the repository"),
            ("patches: [{path: \"https://example.com/a\\n\"}]", "leads out of the repository"),
            ("x: &x {resources: ['http://localhost/x']}\n<<: *x", "merge key"),
            ("- a", "it must be a mapping"),
            ("resources: [", "prod/kustomization.yaml:1:"),
        ] {
            let error = check_files(&[("prod/kustomization.yaml", text)], &["prod", ""]).unwrap_err();
            assert!(
                error.starts_with("prod/kustomization.yaml:") && error.contains(expected),
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

    /// kustomize reads JSON with Go's decoder, which takes these keys for `files`, `resources`, `path` and `helmCharts`.
    #[test]
    fn key_that_is_not_exact_is_refused_with_its_line() {
        for (text, at) in [
            ("configMapGenerator:\n- name: a\n  file\u{17f}: ['x=http://127.0.0.1:8151/']", "3:3"),
            ("re\u{17f}ources: ['http://127.0.0.1:8151/']", "1:1"),
            ("kind: Kustomization\n\"re\\u017fources\": ['http://127.0.0.1:8151/']", "2:1"),
            ("Resources: ['https://example.com/a.yaml']", "1:1"),
            ("patches:\n- PATH: 'http://localhost/x'", "2:3"),
            ("HELMCHARTS: []", "1:1"),
            ("openapi:\n  pat\u{ff48}: x", "2:3"),
            ("x: {resources: []}", "1:1"),
            ("secretGenerator: [{name: a, options: {label\u{17f}: {}}}]", "1:"),
        ] {
            let error = check_files(&[("prod/kustomization.yaml", text)], &["prod", ""]).unwrap_err();
            let place = format!("prod/kustomization.yaml:{at}");
            assert!(error.starts_with(&place) && error.contains("unknown field"), "{text}: {error}");
            assert!(!error.contains("expected one of"), "{error}");
        }
        let text = "commonLabels:\n  a: b\n  \u{17f}: b";
        let error = check_files(&[("prod/kustomization.yaml", text)], &["prod", ""]).unwrap_err();
        assert!(error.contains("ASCII") && error.starts_with("prod/kustomization.yaml:3"), "{error}");
    }

    /// Each key of kustomize 5.8 that kas knows, so that no repository loses one by the list.
    #[test]
    fn all_keys_of_kustomize_are_understood() {
        let text = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nmetadata: {name: a, namespace: b, labels: {c: d}, annotations: {e: f}}\n\
            openapi: {version: v1.20.4}\nnamePrefix: a-\nnameSuffix: -b\nnamespace: c\ncommonLabels: {app.kubernetes.io/name: a, 'yes': 'no'}\n\
            labels: [{pairs: {a: b}, includeSelectors: false, includeTemplates: true, fields: [{group: g, version: v, kind: K, path: a/b, create: true}]}]\n\
            commonAnnotations: {a: 'b'}\npatchesStrategicMerge: [\"kind: A\\na: b\"]\n\
            patchesJson6902: [{target: {group: apps, version: v1, kind: Deployment, name: a, namespace: b}, patch: '[]'}]\n\
            patches: [{patch: 'x', target: {labelSelector: 'a=b', annotationSelector: 'c=d'}, options: {allowNameChange: true, allowKindChange: false}}]\n\
            images: [{name: a, newName: b, newTag: '1.0', digest: 'sha256:0', tagSuffix: -x}]\nimageTags: [{name: a, newTag: b}]\n\
            replacements: [{source: {kind: A, name: b, fieldPath: c, options: {delimiter: '.', index: 1}}, sourceValue: x, targets: [{select: {kind: A}, reject: [{name: b}], fieldPaths: [a.b], options: {create: true, encoding: base64}}]}]\n\
            replicas: [{name: a, count: 3}]\nvars: [{name: A, objref: {apiVersion: v1, kind: B, name: c}, fieldref: {fieldPath: a.b}}]\n\
            sortOptions: {order: legacy, legacySortOptions: {orderFirst: [Namespace], orderLast: [A]}}\n\
            resources:\ncomponents: []\ncrds: []\nbases: []\nconfigurations: []\nbuildMetadata: [managedByLabel]\n\
            configMapGenerator: [{name: a, namespace: b, behavior: merge, literals: [a=b], files: [], envs: [], options: {labels: {a: b}, annotations: {c: d}, disableNameSuffixHash: true, immutable: true}}]\n\
            secretGenerator: [{name: a, type: Opaque, literals: ['a=b']}]\ngeneratorOptions: {disableNameSuffixHash: true}\n";
        let parsed = parse("kustomization.yaml", text.as_bytes()).unwrap();
        assert_eq!(parsed.references().next(), None);
        let mut expected: Value = serde_saphyr::from_str(text).unwrap();
        remove_nulls(&mut expected);
        assert_eq!(serde_json::from_slice::<Value>(&parsed.to_json()).unwrap(), expected);
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
                .collect::<FileTree>()
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
