//! Protobuf and the messages of gRPC by hand, so that tests of a protocol do not depend on its implementation.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::{GzDecoder, GzEncoder};

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message(pub(crate) Vec<(u64, Value)>);

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        self.0.push((field, Value::Bytes(value.as_ref().to_vec())));
        self
    }

    pub(crate) fn message(self, field: u64, value: Self) -> Self {
        self.bytes(field, value.encode())
    }

    pub(crate) fn number(mut self, field: u64, value: i64) -> Self {
        self.0.push((field, Value::Number(value.cast_unsigned())));
        self
    }

    /// Adds an entry of a map from names to `prototool.Values`.
    pub(crate) fn values(self, field: u64, name: &str, values: &[&str]) -> Self {
        let values = values.iter().fold(Self::new(), |message, value| message.bytes(1, value));
        self.message(field, Self::new().bytes(1, name).message(2, values))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (field, value) in &self.0 {
            match value {
                Value::Number(number) => {
                    varint(field << 3, &mut out);
                    varint(*number, &mut out);
                }
                Value::Bytes(bytes) => {
                    varint(field << 3 | 2, &mut out);
                    varint(bytes.len() as u64, &mut out);
                    out.extend(bytes);
                }
            }
        }
        out
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = read_varint(&mut bytes);
            let value = match key & 7 {
                0 => Value::Number(read_varint(&mut bytes)),
                2 => {
                    let length = usize::try_from(read_varint(&mut bytes)).unwrap();
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                kind => panic!("wire type {kind}"),
            };
            fields.push((key >> 3, value));
        }
        Self(fields)
    }

    /// Returns the last value of a field.
    pub(crate) fn get(&self, field: u64) -> Option<&Value> {
        self.0.iter().rev().find(|(number, _)| *number == field).map(|(_, value)| value)
    }

    pub(crate) fn get_bytes(&self, field: u64) -> &[u8] {
        match self.get(field) {
            Some(Value::Bytes(bytes)) => bytes,
            None => &[],
            other => panic!("field {field} is {other:?}"),
        }
    }

    pub(crate) fn get_text(&self, field: u64) -> String {
        String::from_utf8(self.get_bytes(field).to_vec()).unwrap()
    }

    pub(crate) fn get_message(&self, field: u64) -> Self {
        Self::decode(self.get_bytes(field))
    }

    pub(crate) fn get_number(&self, field: u64) -> u64 {
        match self.get(field) {
            Some(Value::Number(number)) => *number,
            None => 0,
            other => panic!("field {field} is {other:?}"),
        }
    }

    /// Returns the values of an entry of a map from names to `prototool.Values`.
    pub(crate) fn get_values(&self, field: u64, name: &str) -> Vec<String> {
        let entries = self.0.iter().filter(|(number, _)| *number == field).map(|(_, value)| match value {
            Value::Bytes(bytes) => Self::decode(bytes),
            Value::Number(_) => panic!("field {field} is a number"),
        });
        let entry = entries.into_iter().find(|entry| entry.get_text(1) == name);
        let values = entry.map(|entry| entry.get_message(2).0).unwrap_or_default();
        values
            .into_iter()
            .map(|(_, value)| match value {
                Value::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
                Value::Number(_) => panic!("a value is a number"),
            })
            .collect()
    }
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return number;
        }
    }
}

/// Returns a message of gRPC that is compressed, as those of GitLab's kas are.
pub(crate) fn grpc_message(message: &Message) -> Bytes {
    let mut compressed = Vec::new();
    GzEncoder::new(&*message.encode(), flate2::Compression::fast()).read_to_end(&mut compressed).unwrap();
    let length = u32::try_from(compressed.len()).unwrap().to_be_bytes();
    [&[1][..], &length, &compressed].concat().into()
}

/// Takes the first message of gRPC, if it is complete.
pub(crate) fn take_grpc_message(buffer: &mut Vec<u8>) -> Option<Message> {
    let length = u32::from_be_bytes(buffer.get(1..5)?.try_into().unwrap()) as usize;
    if buffer.len() < 5 + length {
        return None;
    }
    let rest = buffer.split_off(5 + length);
    let message = std::mem::replace(buffer, rest);
    let mut text = Vec::new();
    match message[0] {
        0 => text.extend(&message[5..]),
        _ => drop(GzDecoder::new(&message[5..]).read_to_end(&mut text).unwrap()),
    }
    Some(Message::decode(&text))
}
