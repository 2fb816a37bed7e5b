//! Kubernetes' protobuf, as far as `kubectl create namespace`, `configmap`, `secret`, `deployment`,
//! `service` and `auth whoami` write it.
//!
//! A message may leave out what it likes, but it must not say what is not understood here: an object with
//! parts missing would be worse than a refusal.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::failure::Failure;

pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Decodes an object in its envelope.
pub(crate) fn decode(body: &[u8]) -> Result<Value, Failure> {
    let envelope =
        body.strip_prefix(MAGIC).and_then(|envelope| message(envelope, ENVELOPE)).ok_or_else(refusal)?;
    let envelope = Value::Object(envelope);
    let (api_version, kind) = (&envelope["type"]["apiVersion"], &envelope["type"]["kind"]);
    let schema = KINDS.iter().find(|(of, name, _)| api_version == of && kind == name);
    let (_, _, schema) = schema.ok_or_else(refusal)?;
    // Bytes are base64 by now, which is how the envelope holds the object.
    let object = envelope["object"].as_str().and_then(|object| BASE64_STANDARD.decode(object).ok());
    let mut object = message(&object.unwrap_or_default(), schema).ok_or_else(refusal)?;
    object.insert("apiVersion".to_owned(), api_version.clone());
    object.insert("kind".to_owned(), kind.clone());
    Ok(Value::Object(object))
}

fn refusal() -> Failure {
    Failure::unsupported_media_type(MEDIA_TYPE, "protobuf of simple objects only: use `kubectl apply -f`")
}

const MAGIC: &[u8] = b"k8s\0";

type Schema = &'static [(u64, &'static str, Shape)];

/// What a field holds. Lists repeat the field.
enum Shape {
    Text,
    Texts,
    Number,
    /// As base64.
    Bytes,
    Message(Schema),
    Messages(Schema),
    /// From names to texts.
    TextMap,
    /// From names to bytes.
    BytesMap,
    IntOrString,
}

const ENVELOPE: Schema = &[
    (1, "type", Shape::Message(&[(1, "apiVersion", Shape::Text), (2, "kind", Shape::Text)])),
    (2, "object", Shape::Bytes),
];

const KINDS: [(&str, &str, Schema); 6] = [
    ("v1", "Namespace", &[(1, "metadata", METADATA)]),
    (
        "v1",
        "ConfigMap",
        &[(1, "metadata", METADATA), (2, "data", Shape::TextMap), (3, "binaryData", Shape::BytesMap)],
    ),
    ("v1", "Secret", &[(1, "metadata", METADATA), (2, "data", Shape::BytesMap), (3, "type", Shape::Text)]),
    ("v1", "Service", &[(1, "metadata", METADATA), (2, "spec", SERVICE)]),
    ("apps/v1", "Deployment", &[(1, "metadata", METADATA), (2, "spec", DEPLOYMENT)]),
    ("authentication.k8s.io/v1", "SelfSubjectReview", &[]),
];

const METADATA: Shape = Shape::Message(&[
    (1, "name", Shape::Text),
    (2, "generateName", Shape::Text),
    (3, "namespace", Shape::Text),
    (11, "labels", Shape::TextMap),
    (12, "annotations", Shape::TextMap),
]);

const SERVICE: Shape = Shape::Message(&[
    (
        1,
        "ports",
        Shape::Messages(&[
            (1, "name", Shape::Text),
            (2, "protocol", Shape::Text),
            (3, "port", Shape::Number),
            (4, "targetPort", Shape::IntOrString),
        ]),
    ),
    (2, "selector", Shape::TextMap),
    (3, "clusterIP", Shape::Text),
    (4, "type", Shape::Text),
]);

const DEPLOYMENT: Shape = Shape::Message(&[
    (1, "replicas", Shape::Number),
    (2, "selector", Shape::Message(&[(1, "matchLabels", Shape::TextMap)])),
    (3, "template", Shape::Message(&[(1, "metadata", METADATA), (2, "spec", POD)])),
]);

const POD: Shape = Shape::Message(&[(
    2,
    "containers",
    Shape::Messages(&[
        (1, "name", Shape::Text),
        (2, "image", Shape::Text),
        (3, "command", Shape::Texts),
        (4, "args", Shape::Texts),
        (
            6,
            "ports",
            Shape::Messages(&[
                (1, "name", Shape::Text),
                (3, "containerPort", Shape::Number),
                (4, "protocol", Shape::Text),
            ]),
        ),
    ]),
)]);

/// A field as it is on the wire.
enum Wire<'message> {
    Number(u64),
    Bytes(&'message [u8]),
}

fn message(bytes: &[u8], schema: Schema) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (number, wire) = field(&mut rest)?;
        let known = schema.iter().find(|(known, _, _)| *known == number);
        match (known, wire) {
            (Some((_, name, Shape::Number)), Wire::Number(value)) => {
                // Negative numbers are sign-extended.
                object.insert((*name).to_owned(), value.cast_signed().into());
            }
            (Some((_, name, shape)), Wire::Bytes(value)) => set(object.entry(*name), shape, value)?,
            (None, wire) if is_blank(&wire, 0) => {}
            _ => return None,
        }
    }
    // Required text that nobody set is written as empty.
    object.retain(|_, value| *value != "");
    Some(object)
}

fn set(entry: serde_json::map::Entry<'_>, shape: &Shape, bytes: &[u8]) -> Option<()> {
    match shape {
        Shape::Number => return None,
        Shape::Text => *entry.or_insert(Value::Null) = text(bytes)?,
        Shape::Bytes => *entry.or_insert(Value::Null) = base64(bytes),
        Shape::Message(schema) => *entry.or_insert(Value::Null) = message(bytes, schema)?.into(),
        Shape::IntOrString => *entry.or_insert(Value::Null) = int_or_string(bytes)?,
        Shape::Texts => entry.or_insert_with(|| json!([])).as_array_mut()?.push(text(bytes)?),
        Shape::Messages(schema) => {
            entry.or_insert_with(|| json!([])).as_array_mut()?.push(message(bytes, schema)?.into());
        }
        Shape::TextMap | Shape::BytesMap => {
            let (mut key, mut value) = (&[] as &[u8], &[] as &[u8]);
            let mut rest = bytes;
            while !rest.is_empty() {
                match field(&mut rest)? {
                    (1, Wire::Bytes(bytes)) => key = bytes,
                    (2, Wire::Bytes(bytes)) => value = bytes,
                    _ => return None,
                }
            }
            let value = if matches!(shape, Shape::TextMap) { text(value)? } else { base64(value) };
            let key = std::str::from_utf8(key).ok()?.to_owned();
            entry.or_insert_with(|| json!({})).as_object_mut()?.insert(key, value);
        }
    }
    Some(())
}

fn int_or_string(bytes: &[u8]) -> Option<Value> {
    let object =
        message(bytes, &[(1, "type", Shape::Number), (2, "int", Shape::Number), (3, "text", Shape::Text)])?;
    let name = if object.get("type").is_some_and(|kind| *kind == 1) { "text" } else { "int" };
    Some(object.get(name).cloned().unwrap_or_else(|| 0.into()))
}

fn text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

fn base64(bytes: &[u8]) -> Value {
    BASE64_STANDARD.encode(bytes).into()
}

/// Takes a field off the front: its number and its value.
fn field<'message>(rest: &mut &'message [u8]) -> Option<(u64, Wire<'message>)> {
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            let (bytes, after) = rest.split_at_checked(length)?;
            *rest = after;
            Wire::Bytes(bytes)
        }
        _ => return None,
    };
    Some((tag >> 3, wire))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Whether a field says nothing, like a status whose every number is zero.
fn is_blank(wire: &Wire<'_>, depth: usize) -> bool {
    let mut rest = match wire {
        Wire::Number(number) => return *number == 0,
        Wire::Bytes(bytes) => *bytes,
    };
    while !rest.is_empty() {
        // No object Kubernetes writes is nested as deeply as this.
        if depth > 10 || !field(&mut rest).is_some_and(|(_, wire)| is_blank(&wire, depth + 1)) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG_MAP: &[u8] = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x15\
        \x0a\x09\x0a\x01x\x12\x00\x42\x00\x38\x00\x12\x08\x0a\x01k\x12\x03v\xc3\xa9";

    #[test]
    fn an_object_is_decoded() {
        let object = decode(CONFIG_MAP).expect("a ConfigMap");
        let expected = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "x" },
            "data": { "k": "v\u{e9}" },
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn a_part_of_an_object_is_refused() {
        // The envelope alone is a ConfigMap that says nothing.
        for end in (0..CONFIG_MAP.len()).filter(|end| *end != 21) {
            assert!(decode(&CONFIG_MAP[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let immutable = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x02\x20\x01";
        assert_eq!(decode(immutable).expect_err("immutable").code, 415);
        let blank = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x02\x20\x00";
        assert_eq!(decode(blank).expect("nothing set")["kind"], "ConfigMap");
    }
}
