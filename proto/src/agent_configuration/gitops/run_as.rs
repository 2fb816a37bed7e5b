//! The identity of a project in the cluster.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// An identity in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunAs {
    /// A service account: `name` in `default_namespace`, or `namespace/name`.
    #[serde(deserialize_with = "service_account")]
    pub service_account: String,
}

/// Reads a service account as a text, or as the object that other keys have for it: `{name: deployer, namespace: shop}`.
fn service_account<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parts {
        name: String,
        #[serde(default)]
        namespace: Option<String>,
    }

    struct Visitor;

    impl<'de> de::Visitor<'de> for Visitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the name of a service account, namespace/name, or {name, namespace}")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<String, A::Error> {
            let Parts { name, namespace } = Parts::deserialize(de::value::MapAccessDeserializer::new(map))?;
            Ok(namespace.map(|namespace| format!("{namespace}/{name}")).unwrap_or(name))
        }
    }

    deserializer.deserialize_any(Visitor)
}
