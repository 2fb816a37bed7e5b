//! The comparison of two results.

use std::borrow::Cow;

use serde_json::Value;

use super::{group::GroupKind, headers::AllowedDifferences, result::RowResult, side::Side};
use crate::support::{is_age, normalize};

/// The maximum length of a text in a difference, in characters.
const SHOWN: usize = 2000;

/// The keys of fields that the cluster sets to a different value in each object or response.
const VARYING: [&str; 11] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "time",
    "lastUpdateTime",
    "lastTransitionTime",
    "token",
    "expirationTimestamp",
    "clusterIP",
    "clusterIPs",
];

/// Returns descriptions of the differences between two results, and the names of headers with allowed differences.
pub(super) fn differences(
    kind: GroupKind,
    allowed: &AllowedDifferences,
    (direct, result): (&Side, &RowResult),
    (through, other): (&Side, &RowResult),
) -> (Vec<String>, Vec<String>) {
    let text = |side: &Side, bytes: &[u8]| {
        let text = side.anonymize(&String::from_utf8_lossy(bytes));
        match kind {
            GroupKind::Shared => normalize(&text, "NAMESPACE"),
            GroupKind::Twin => json_lines(&text).unwrap_or_else(|| normalize(&text, "NAMESPACE")),
        }
    };
    let compare = |what: &str, mine: &[u8], theirs: &[u8]| {
        let (mine, theirs) = (text(direct, mine), text(through, theirs));
        (mine != theirs).then(|| difference(what, &mine, &theirs))
    };
    match (result, other) {
        (
            RowResult::Program { code, stdout, stderr },
            RowResult::Program { code: code2, stdout: out2, stderr: err2 },
        ) => {
            let codes =
                (code != code2).then(|| format!("exit code: {code} without the tunnel, {code2} through it"));
            let all = [codes, compare("stdout", stdout, out2), compare("stderr", stderr, err2)];
            (all.into_iter().flatten().collect(), Vec::new())
        }
        (
            RowResult::Http { status_line, headers, body, stderr },
            RowResult::Http { status_line: line2, headers: headers2, body: body2, stderr: err2 },
        ) => {
            let bodies = match kind {
                // Both sides read the same objects.
                GroupKind::Shared => (without_ages(body) != without_ages(body2)).then(|| bytes(body, body2)),
                GroupKind::Twin => compare("body", body, body2),
            };
            let all = [
                compare("status", status_line.as_bytes(), line2.as_bytes()),
                bodies,
                compare("stderr", stderr, err2),
            ];
            let (mut headers, mut headers2) = (headers.clone(), headers2.clone());
            if kind == GroupKind::Twin {
                // Resource versions of twin objects have different lengths. The bodies are compared above.
                for headers in [&mut headers, &mut headers2] {
                    headers.retain(|(name, _)| name != "content-length");
                }
            }
            let (refused, seen) = allowed.compare(&headers, &headers2);
            (all.into_iter().flatten().chain(refused).collect(), seen.into_iter().collect())
        }
        _ => (vec!["only one result is an HTTP response".to_owned()], Vec::new()),
    }
}

/// Replaces the ages in the tables of an API server, which grow between two requests.
fn without_ages(body: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(body) {
        Ok(text) if text.contains(r#""kind":"Table""#) => {
            let parts: Vec<&str> =
                text.split('"').map(|part| if is_age(part) { "AGE" } else { part }).collect();
            parts.join("\"").into_bytes().into()
        }
        _ => body.into(),
    }
}

/// Describes the difference between two bodies.
fn bytes(direct: &[u8], through: &[u8]) -> String {
    let texts = [direct, through].map(String::from_utf8_lossy);
    let lines = difference("body", &texts[0], &texts[1]);
    format!("{} bytes without the tunnel, {} through it; {lines}", direct.len(), through.len())
}

/// Describes the difference between two texts, from the first different line on.
fn difference(what: &str, direct: &str, through: &str) -> String {
    let (mut left, mut right) = (direct.lines().peekable(), through.lines().peekable());
    let mut line = 1;
    while left.peek().is_some() && left.peek() == right.peek() {
        (_, _) = (left.next(), right.next());
        line += 1;
    }
    let rest = |lines: &mut dyn Iterator<Item = &str>| lines.take(4).collect::<Vec<_>>().join("\n  ");
    let (left, right) = (rest(&mut left), rest(&mut right));
    let cut = |text: &str| text.chars().take(SHOWN).collect::<String>();
    format!("{what}, from line {line} on\n- {}\n+ {}", cut(&left), cut(&right))
}

/// Formats JSON documents without the values of varying fields. Returns `None` for other texts.
fn json_lines(text: &str) -> Option<String> {
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let mut document = document.ok().filter(|document| document.is_object())?;
        blank(&mut document);
        documents.push(serde_json::to_string_pretty(&document).unwrap());
    }
    (!documents.is_empty()).then(|| documents.join("\n"))
}

/// Replaces the values of varying fields.
fn blank(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if VARYING.contains(&&**key) { *value = Value::from("…") } else { blank(value) }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(blank),
        _ => {}
    }
}
