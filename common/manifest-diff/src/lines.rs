//! The lines of objects and errors. Each begins with a sign, as in a patch.

use std::{fmt::Write as _, time::Duration};

use proto::{
    gitops::{DiffAction, FieldDiff, ManifestApplication, ObjectDiff, ObjectError},
    graph::{ApplicationDescriptor, ApplicationLink},
};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use super::printable::printable;

/// The longest value on the line of its field, in characters.
const MAX_INLINE: usize = 100;
/// The lines of a long text around each difference.
const CONTEXT: usize = 2;
/// The time for the differences of two long texts. After it, they are longer than needed.
const TEXT_TIMEOUT: Duration = Duration::from_millis(50);

/// Returns the line of an error, without its end.
pub fn error_line(error: &ObjectError) -> String {
    let file = if error.file.is_empty() { String::new() } else { format!("{}: ", error.file) };
    let object = error.object.as_ref().map(|id| format!("{id}: ")).unwrap_or_default();
    format!("! {}", printable(&format!("{file}{object}{}", error.message)))
}

/// Returns the lines of an object: one about the object, and those of its fields.
pub fn object_lines(diff: &ObjectDiff) -> String {
    format!("{}\n{}", head_line(diff), field_lines(diff, usize::MAX))
}

/// Returns the lines of an Application of `app.k8s.io` in the manifests, without their ends: one about it, and one for each link.
pub fn application_lines(application: &ManifestApplication) -> Vec<String> {
    let ManifestApplication { object, file, descriptor } = application;
    let ApplicationDescriptor { application_type, version, description, links, .. } = descriptor;
    let words = [application_type, version].into_iter().filter(|word| !word.is_empty()).map(String::as_str);
    let words = words.collect::<Vec<_>>().join(" ");
    let comma = if description.is_empty() { "" } else { ", " };
    let head = format!("{object} ({file}): {words}{comma}{description}");
    let link = |ApplicationLink { description, url }: &ApplicationLink| {
        let colon = if description.is_empty() { "" } else { ": " };
        printable(&format!("{description}{colon}{url}"))
    };
    [printable(&head)].into_iter().chain(links.iter().map(link)).collect()
}

/// Returns the line about an object, without its end.
pub(super) fn head_line(diff: &ObjectDiff) -> String {
    let (sign, action) = match diff.action {
        DiffAction::Create => ('+', "create"),
        DiffAction::Change => ('~', "change"),
        DiffAction::Recreate => ('±', "delete and create again"),
        DiffAction::Delete => ('-', "delete"),
        DiffAction::Keep => ('=', "keep"),
    };
    let mut head = format!("{action} {}", diff.object);
    // Writing to a string does not fail.
    if !diff.file.is_empty() {
        let _ = write!(head, " ({})", diff.file);
    }
    if !diff.note.is_empty() {
        let _ = write!(head, ": {}", diff.note);
    }
    format!("{sign} {}", printable(&head))
}

/// Returns the lines of the fields of an object. Each begins with `+`, `-` or a space. Texts of more bytes are counted only.
pub(super) fn field_lines(diff: &ObjectDiff, max_text: usize) -> String {
    let mut text = String::new();
    diff.fields.iter().for_each(|field| write_field(&mut text, field, max_text));
    text
}

fn write_field(text: &mut String, FieldDiff { path, before, after }: &FieldDiff, max_text: usize) {
    if let (Some(Value::String(before)), Some(Value::String(after))) = (before, after)
        && (before.contains('\n') || after.contains('\n'))
    {
        if before.len().max(after.len()) > max_text {
            let lines = after.lines().count();
            return write_line(text, ' ', 3, &format!("{path}: text of {lines} lines changed"));
        }
        write_line(text, ' ', 3, &format!("{path}:"));
        return write_text(text, before, after);
    }
    for (sign, value) in [('-', before), ('+', after)] {
        if let Some(value) = value {
            write_value(text, sign, path, value);
        }
    }
}

/// Writes the lines in which two long texts differ.
fn write_text(text: &mut String, before: &str, after: &str) {
    let mut differ = TextDiff::configure();
    differ.timeout(TEXT_TIMEOUT);
    let diff = differ.diff_lines(before, after);
    for group in diff.grouped_ops(CONTEXT) {
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            write_line(text, sign, 5, change.value().trim_end_matches('\n'));
        }
    }
}

fn write_value(text: &mut String, sign: char, path: &str, value: &Value) {
    let inline = value.to_string();
    if !path.is_empty() && inline.chars().count() <= MAX_INLINE {
        return write_line(text, sign, 3, &format!("{path}: {inline}"));
    }
    let mut indent = 3;
    if !path.is_empty() {
        write_line(text, sign, 3, &format!("{path}:"));
        indent = 5;
    }
    let yaml = serde_saphyr::to_string(value).unwrap_or(inline);
    yaml.lines().for_each(|part| write_line(text, sign, indent, part));
}

fn write_line(text: &mut String, sign: char, indent: usize, content: &str) {
    let content = printable(content);
    let _ = writeln!(text, "{}", format!("{sign}{:indent$}{content}", "").trim_end());
}

#[cfg(test)]
mod tests {
    use proto::gitops::DiffAction;
    use serde_json::json;

    use super::*;
    use crate::examples::{field, object};

    #[test]
    fn object_is_shown_like_a_patch() {
        let text = |middle: &str| json!(format!("1\n2\n3\n4\n{middle}\n6\n7\n8\n"));
        let long = json!({"name": "web", "image": "nginx", "args": ["a".repeat(60), "b".repeat(60)]});
        let fields = vec![
            field("data.key", Some(json!("one")), Some(json!("two"))),
            field("data.conf", Some(text("5")), Some(text("five\u{1b}[2J"))),
            field("spec.containers[name=web]", None, Some(long)),
            field("spec.replicas", Some(json!(2)), None),
        ];
        let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
        let objects = [
            object(DiffAction::Change, "a", fields),
            object(DiffAction::Create, "b", vec![field("", None, Some(whole))]),
            object(DiffAction::Delete, "c", Vec::new()),
        ];
        let expected = "\
~ change ConfigMap shop/a (app.yaml:3)
-   data.key: \"one\"
+   data.key: \"two\"
    data.conf:
      3
      4
-     5
+     five?[2J
      6
      7
+   spec.containers[name=web]:
+     args:
+     - aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
+     - bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
+     image: nginx
+     name: web
-   spec.replicas: 2
+ create ConfigMap shop/b (app.yaml:3)
+   apiVersion: v1
+   data:
+     a: b
+   kind: ConfigMap
- delete ConfigMap shop/c
";
        assert_eq!(objects.iter().map(object_lines).collect::<String>(), expected);
    }
}
