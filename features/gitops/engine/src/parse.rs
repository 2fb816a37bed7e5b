//! Files to objects. YAML is read as `kubectl` reads it, with limits against documents that expand.

mod error;

use std::sync::Arc;

use proto::gitops::{ObjectError, ObjectId};
use serde_json::{Map, Value};

use self::error::{ManifestError, ManifestFault};
use crate::{
    Manifest, SourceFile, SourceLine, folded, left_out, ports,
    yaml::{self, Document},
};

/// The most objects of a sync.
pub const MAX_OBJECTS: usize = 20_000;
/// The most errors that are collected.
const MAX_ERRORS: usize = 50;
/// The first line of a file whose content is in LFS (Git LFS specification, "The Pointer").
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Reads all objects of all files.
///
/// # Errors
///
/// The errors of all files that cannot be read. No object may be used then.
pub fn parse(files: &[SourceFile]) -> Result<Vec<Manifest>, Vec<ObjectError>> {
    let (mut manifests, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        let path: Arc<str> = file.path.as_str().into();
        if let Err(error) = parse_file(file, &path, &mut manifests) {
            let file = SourceLine { file: path, line: error.line }.to_string();
            errors.push(ObjectError { object: None, file, message: error.to_string() });
        }
        if errors.len() >= MAX_ERRORS {
            break;
        }
    }
    if manifests.len() > MAX_OBJECTS {
        errors.push(whole(&format!("the files have over {MAX_OBJECTS} objects: split the project")));
    }
    if errors.is_empty() { Ok(manifests) } else { Err(errors) }
}

/// Adds the objects of a file.
fn parse_file(
    file: &SourceFile,
    path: &Arc<str>,
    manifests: &mut Vec<Manifest>,
) -> Result<(), ManifestError> {
    if file.content.starts_with(LFS_POINTER) {
        return Err(ManifestFault::LfsPointer.at(1));
    }
    let text = str::from_utf8(&file.content).map_err(|invalid| {
        let line =
            file.content[..invalid.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        ManifestFault::NotUtf8.at(line)
    })?;
    let documents = yaml::documents(text).map_err(|error| {
        let line = error.line;
        let fault =
            if text.contains("{{") { ManifestFault::Template(error) } else { ManifestFault::Yaml(error) };
        fault.at(line)
    })?;
    for Document { value, line } in documents {
        let source = SourceLine { file: Arc::clone(path), line };
        add_object(value, &source, manifests).map_err(|fault| fault.at(source.line))?;
    }
    Ok(())
}

/// Adds the object of a document, or the items of a list.
fn add_object(value: Value, source: &SourceLine, manifests: &mut Vec<Manifest>) -> Result<(), ManifestFault> {
    let mut object = match value {
        // An empty document, such as one with comments only.
        Value::Null => return Ok(()),
        Value::Object(object) => object,
        _ => return Err(ManifestFault::NotObject),
    };
    let api_version = text(&object, "apiVersion")?;
    let kind = text(&object, "kind")?;
    if kind.ends_with("List") && object.get("items").is_some_and(Value::is_array) {
        let Some(Value::Array(items)) = object.remove("items") else { return Ok(()) };
        let of = kind.trim_end_matches("List");
        return items.into_iter().try_for_each(|mut item| {
            // The items of typed lists, such as ConfigMapList, need not repeat their kind.
            if let Some(item) = item.as_object_mut().filter(|_| !of.is_empty()) {
                item.entry("apiVersion").or_insert_with(|| api_version.clone().into());
                item.entry("kind").or_insert_with(|| of.into());
            }
            add_object(item, source, manifests)
        });
    }
    if api_version.starts_with("kustomize.config.k8s.io/") {
        return Err(ManifestFault::Kustomization);
    }
    if object.contains_key("sops") {
        return Err(ManifestFault::Encrypted { kind });
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    if version.is_empty() || version.contains('/') {
        return Err(ManifestFault::InvalidApiVersion(api_version));
    }
    let metadata = object.get("metadata").and_then(Value::as_object);
    let metadata = metadata.ok_or_else(|| ManifestFault::MissingMetadata { kind: kind.clone() })?;
    let not_text = |field: String, object: String| ManifestFault::MetadataNotText { field, object };
    let name = match metadata.get("name") {
        Some(Value::String(name)) => name,
        None | Some(Value::Null) => "",
        Some(_) => return Err(not_text("name".to_owned(), kind)),
    };
    if name.is_empty() {
        return Err(if metadata.contains_key("generateName") {
            ManifestFault::GeneratedName { kind }
        } else {
            ManifestFault::MissingName { kind }
        });
    }
    let namespace = match metadata.get("namespace") {
        None | Some(Value::Null) => "",
        Some(Value::String(namespace)) => namespace,
        Some(_) => return Err(not_text("namespace".to_owned(), format!("{kind} {name}"))),
    };
    if let Some(wrong) = [name, namespace].into_iter().find(|part| !is_path_segment(part)) {
        return Err(ManifestFault::InvalidName { name: wrong.to_owned(), kind });
    }
    for field in ["labels", "annotations"] {
        let strings = match metadata.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(strings)) => strings,
            Some(_) => {
                let object = format!("{kind} {name}");
                return Err(ManifestFault::MetadataNotMapping { field, object });
            }
        };
        // The API server reads null as an empty text.
        let is_text = |value: &Value| value.is_string() || value.is_null();
        if let Some((label, _)) = strings.iter().find(|(_, value)| !is_text(value)) {
            return Err(not_text(format!("{field}.{label}"), format!("{kind} {name}")));
        }
    }
    let id =
        ObjectId { group: group.to_owned(), kind, namespace: namespace.to_owned(), name: name.to_owned() };
    let version = version.to_owned();
    let mut object = Value::Object(object);
    for key in ["labels", "annotations"] {
        let texts = object.pointer_mut(&format!("/metadata/{key}")).and_then(Value::as_object_mut);
        let texts = texts.into_iter().flat_map(Map::values_mut);
        texts.filter(|text| text.is_null()).for_each(|text| *text = "".into());
    }
    left_out::leave_out(&id, &mut object);
    ports::set_protocols(&id, &mut object);
    folded::unfold(&id, &mut object)?;
    manifests.push(Manifest { id, version, object, source: source.clone() });
    Ok(())
}

fn text(object: &Map<String, Value>, key: &'static str) -> Result<String, ManifestFault> {
    match object.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
        Some(_) => Err(ManifestFault::FieldNotText(key)),
        None => Err(ManifestFault::MissingField(key)),
    }
}

/// Returns whether the API server takes a text as the name of some kind: names of RBAC are parts of paths, and have no other limit there.
fn is_path_segment(text: &str) -> bool {
    let is_valid = |c: char| !c.is_control() && !matches!(c, '/' | '%');
    text.len() <= 253 && text.chars().all(is_valid) && !matches!(text, "." | "..")
}

fn whole(message: &str) -> ObjectError {
    ObjectError { object: None, file: String::new(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), content: content.to_owned().into() }
    }

    fn one(content: &str) -> Result<Vec<Manifest>, Vec<ObjectError>> {
        parse(&[file("a.yaml", content)])
    }

    const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

    #[test]
    fn documents_lists_and_json_become_objects_with_their_lines() {
        let text = format!(
            "# a comment\n---\n{CONFIG_MAP}---\n\n---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: apps/v1\n  kind: Deployment\n  \
             metadata: {{name: b, namespace: shop}}\n"
        );
        let parsed = one(&text).unwrap();
        let shown: Vec<_> = parsed.iter().map(|object| format!("{} {}", object.source, object.id)).collect();
        assert_eq!(shown, ["a.yaml:3 ConfigMap a", "a.yaml:9 Deployment.apps shop/b"]);
        assert_eq!((&*parsed[1].version, &*parsed[0].version), ("v1", "v1"));
        let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}"#;
        assert_eq!(one(json).unwrap()[0].object["data"]["k"], "v");
        for empty in ["", "\n", "# nothing\n", "---\n---\n", "\u{feff}"] {
            assert_eq!(one(empty).unwrap(), [], "{empty:?}");
        }
    }

    /// The expected values are those of `kubectl` 1.37 for the same text.
    #[test]
    fn scalars_are_those_of_kubectl() {
        let parsed = one(&format!(
            "\u{feff}{CONFIG_MAP}data: {{a: yes, b: 'yes', c: 0644, d: 1.5, e: ~, f: 1e3, g: on, h: 0x10, i: '0644', j: y, k: 0o17, \
             l: 12:30, m: 2026-01-01, o: 1_000, p: 0b11, q: +5, r: No, s: '0o7', t: 010.5}}\r\n"
        ));
        let data = parsed.unwrap().remove(0).object["data"].take();
        let expected = serde_json::json!({
            "a": true, "b": "yes", "c": 420, "d": 1.5, "e": null, "f": 1000, "g": true, "h": 16, "i": "0644", "j": true,
            "k": 15, "l": "12:30", "m": "2026-01-01", "o": 1000, "p": 3, "q": 5, "r": false, "s": "0o7", "t": 10.5,
        });
        assert_eq!(data, expected);
    }

    #[test]
    fn aliases_and_merge_keys_are_expanded() {
        let parsed = one(&format!("{CONFIG_MAP}data:\n  a: &x {{k: v}}\n  b: {{<<: *x, l: w}}\n")).unwrap();
        assert_eq!(parsed[0].object["data"]["b"], serde_json::json!({"k": "v", "l": "w"}));
    }

    #[test]
    fn names_of_rbac_are_those_that_the_api_server_takes() {
        let role = |name: &str| {
            let metadata = serde_json::json!({"name": name});
            let text =
                format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {metadata}\n");
            parse(&[file("a.yaml", &text)]).map(|manifests| manifests[0].id.name.clone())
        };
        for name in ["system:a", "a|b", "a #b", "a b", "ü", "[a]", "a?b", "a;b"] {
            assert_eq!(role(name).as_deref(), Ok(name));
        }
        for name in ["a/b", "a%b", ".", "..", "a\nb"] {
            assert!(role(name).unwrap_err()[0].message.contains("cannot be the name of a Role"), "{name:?}");
        }
    }

    #[test]
    fn file_that_is_no_manifest_is_refused_with_its_line() {
        for (text, expected) in [
            ("a: [", "a.yaml:1: the file is not valid YAML"),
            (
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n",
                "a.yaml:1: the ConfigMap has no metadata.name",
            ),
            ("---\nkind: ConfigMap\n", "a.yaml:2: a document has no apiVersion"),
            ("apiVersion: v1\n", "a document has no kind"),
            ("- a\n", "a document is not an object"),
            (
                "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
                "a kustomization is no object",
            ),
            ("text\n", "a document is not an object"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\n", "has generateName"),
            ("apiVersion: a/b/c\nkind: Pod\nmetadata: {name: a}\n", "is not an apiVersion"),
            ("apiVersion: 1\nkind: Pod\n", "apiVersion is not a text"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {b: 1}}\n",
                "metadata.labels.b of the Pod a is not a text",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: [b]}\n",
                "metadata.labels of the Pod a is not a mapping",
            ),
            (
                "apiVersion: v1\napiVersion: v1\n",
                "a.yaml:2: the key apiVersion is set twice: remove one of them",
            ),
            (
                "a: b\nc: {{ .Values.d }}\n",
                "a.yaml:2: a key is not a text but a mapping or a list: a text with { or [ needs quotes; {{ }} is of",
            ),
            (
                "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nsops: {version: 3.9.0}\n",
                "a.yaml:1: the Secret is encrypted with SOPS, and agentk does not decrypt",
            ),
            ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "pointer to Git LFS"),
        ] {
            let error = one(text).unwrap_err().remove(0);
            let error = format!("{}: {}", error.file, error.message);
            assert!(error.contains(expected), "{text:?} gave {error}");
        }
        let invalid = SourceFile { path: "b.yaml".to_owned(), content: vec![b'a', b'\n', 0xff].into() };
        let errors = parse(&[invalid, file("c.yaml", "[")]).unwrap_err();
        assert_eq!(errors[0].file, "b.yaml:2");
        assert_eq!(errors.len(), 2, "the errors of all files");
    }

    #[test]
    fn empty_labels_and_annotations_are_empty_texts() {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {team: }, annotations: {port: null, b: x}}\n";
        let metadata = one(text).unwrap().remove(0).object["metadata"].take();
        assert_eq!((&metadata["labels"]["team"], &metadata["annotations"]["port"]), (&"".into(), &"".into()));
    }

    #[test]
    fn items_of_a_typed_list_have_its_kind() {
        let parsed = one(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleList\nitems:\n- {metadata: {name: a}}\n",
        )
        .unwrap();
        assert_eq!(parsed[0].id.to_string(), "Role.rbac.authorization.k8s.io a");
        assert_eq!(parsed[0].object["kind"], "Role");
    }

    #[test]
    fn file_may_have_several_values_of_json_or_byte_order_marks() {
        let map = |name: &str| {
            format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#)
        };
        let lines = |text: &str| -> Vec<String> {
            one(text).unwrap().iter().map(|read| format!("{} {}", read.source, read.id)).collect()
        };
        assert_eq!(
            lines(&format!("{}\n{}", map("a"), map("b"))),
            ["a.yaml:1 ConfigMap a", "a.yaml:2 ConfigMap b"]
        );
        let marked = format!("{CONFIG_MAP}---\n\u{feff}{CONFIG_MAP}");
        assert_eq!(lines(&marked).len(), 2);
    }

    /// Test 50 of the attack list.
    #[test]
    fn expansion_is_limited() {
        let mut bomb = format!("{CONFIG_MAP}data:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let inner = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb += &format!("  a{level}: &a{level} [{inner}]\n");
        }
        assert!(one(&bomb).is_err());
        assert!(one(&format!("{CONFIG_MAP}data: {}{}", "[".repeat(10_000), "]".repeat(10_000))).is_err());
        assert!(one(&"---\n".repeat(100_000)).is_err());
        let large = format!("{CONFIG_MAP}data: {{a: {}}}", "x".repeat(1 << 20));
        assert!(one(&large).is_ok(), "a large text is no expansion");
    }
}
