//! The documents agree with the definitions of custom resources.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the rows of a schema: path, type and description of each field below `path`.
fn rows(schema: &Value, path: &str) -> Vec<String> {
    let Some(fields) = schema["properties"].as_object() else {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut kind = text(&schema["type"]);
        if kind == "array" {
            kind = format!("array of {}", text(&schema["items"]["type"]));
        }
        if let Some(format) = schema["format"].as_str() {
            kind = format!("{kind} ({format})");
        }
        return vec![format!("| `{path}` | {kind} | {} |", text(&schema["description"]))];
    };
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    fields.iter().flat_map(|(name, field)| rows(field, &below(name))).collect()
}

#[test]
fn page_of_custom_resources_has_each_field_of_each_definition() {
    let page = fs::read_to_string(root().join("docs/custom-resources.md")).unwrap();
    let documented = page.lines().filter(|line| line.starts_with("| `"));
    let mut documented: Vec<String> = documented.map(str::to_owned).collect();
    let mut expected = Vec::new();
    for file in fs::read_dir(root().join("deploy/charts/agentk/templates")).unwrap() {
        // There is a folder beside the templates.
        let text = fs::read_to_string(file.unwrap().path()).unwrap_or_default();
        if !text.contains("\nkind: CustomResourceDefinition\n") {
            continue;
        }
        let plain: Vec<&str> = text.lines().filter(|line| !line.contains("{{")).collect();
        let definition: Value = serde_saphyr::from_str(&plain.join("\n")).unwrap();
        let spec = &definition["spec"];
        let version = &spec["versions"][0];
        for name in [&definition["metadata"]["name"], &spec["names"]["kind"], &version["name"]] {
            let name = format!("`{}`", name.as_str().unwrap());
            assert!(page.contains(&name), "docs/custom-resources.md does not name {name}");
        }
        expected.extend(rows(&version["schema"]["openAPIV3Schema"], ""));
    }
    assert!(expected.len() >= 9, "{expected:#?}");
    documented.sort();
    expected.sort();
    assert_eq!(documented, expected);
}
