//! Bounds of numbers and durations: an invalid configuration is refused before a listener is bound. The schema has the same
//! bounds, because both come from one type.

use std::{borrow::Cow, fmt::Display, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Durations as the parser reads them.
const DURATION: &str = r"^(([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h))+$";

/// An integer from `LEAST` to `MOST`, for `#[serde(with)]`.
pub struct Within<const LEAST: u64, const MOST: u64>;

/// Events per second, for `#[serde(with)]`. GitLab's kas has fractions here, such as `50.0`; this one has to be whole.
pub struct Rate;

/// A duration, for `#[serde(with)]`.
pub struct AnyDuration;

/// A duration above zero, for `#[serde(with)]`.
pub struct Timeout;

impl<const LEAST: u64, const MOST: u64> Within<LEAST, MOST> {
    /// Serializes the default for the schema.
    pub fn serialize<T: Serialize, S: Serializer>(number: &T, serializer: S) -> Result<S::Ok, S::Error> {
        number.serialize(serializer)
    }

    /// Deserializes a number within the bounds.
    pub fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: Deserialize<'de> + TryInto<u64> + Display + Copy,
    {
        let number = T::deserialize(deserializer)?;
        match number.try_into() {
            Ok(value) if (LEAST..=MOST).contains(&value) => Ok(number),
            _ => Err(D::Error::custom(format!("{number} is not between {LEAST} and {MOST}"))),
        }
    }
}

impl Rate {
    const LEAST: u32 = 1;
    const MOST: u32 = 100_000;

    /// Serializes the default for the schema.
    pub fn serialize<S: Serializer>(rate: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        rate.serialize(serializer)
    }

    /// Deserializes a whole number.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let number = f64::deserialize(deserializer)?;
        // The text of a whole number has no point.
        match number.to_string().parse() {
            Ok(rate) if (Self::LEAST..=Self::MOST).contains(&rate) => Ok(rate),
            _ => {
                let (least, most) = (Self::LEAST, Self::MOST);
                Err(D::Error::custom(format!("{number} is not a whole number between {least} and {most}")))
            }
        }
    }
}

impl AnyDuration {
    /// Serializes the default for the schema.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        crate::duration::serialize(duration, serializer)
    }

    /// Deserializes a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        crate::duration::deserialize(deserializer)
    }
}

impl Timeout {
    /// Serializes the default for the schema.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        AnyDuration::serialize(duration, serializer)
    }

    /// Deserializes a duration above zero.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let duration = AnyDuration::deserialize(deserializer)?;
        if duration.is_zero() {
            return Err(D::Error::custom("the duration must be longer than zero"));
        }
        Ok(duration)
    }
}

impl<const LEAST: u64, const MOST: u64> JsonSchema for Within<LEAST, MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("From{LEAST}To{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": LEAST, "maximum": MOST})
    }
}

impl JsonSchema for Rate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": Self::LEAST, "maximum": Self::MOST})
    }
}

impl JsonSchema for AnyDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": DURATION, "examples": ["300s", "1.5s", "20ms", "1h30m"]})
    }
}

impl JsonSchema for Timeout {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Timeout".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = AnyDuration::json_schema(generator);
        // A pattern cannot exclude zero by itself: the regular expressions of helm have no lookahead.
        schema.insert("allOf".to_owned(), serde_json::json!([{"pattern": "[1-9]"}]));
        schema
    }
}
