//! A page of a list, and what is kept of the metadata that others have made.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

/// The most labels and the most annotations of an object that are kept from such a page. Each environment of an object has one.
const MAX_KEPT: usize = 256;
/// The most owners of an object that are kept from it.
const MAX_OWNERS: usize = 16;
/// The longest value of an annotation that is kept from it, in bytes.
const MAX_KEPT_VALUE: usize = 4096;
/// The longest UID of an owner that is kept from it. The API server makes UIDs of 36 bytes, and does not check those of owners.
const MAX_UID: usize = 64;

/// A page of a list. Its items are parsed one by one: as values, a whole page needs many times its bytes.
#[derive(Deserialize)]
pub(super) struct Page<'a> {
    /// An empty list may have `null`.
    #[serde(borrow, default)]
    pub(super) items: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    pub(super) metadata: PageMetadata,
}

#[derive(Default, Deserialize)]
pub(super) struct PageMetadata {
    #[serde(rename = "continue")]
    pub(super) continue_token: Option<String>,
}

/// An item of a page of metadata.
#[derive(Deserialize)]
pub(super) struct MetadataItem {
    pub(super) metadata: ItemMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ItemMetadata {
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) resource_version: String,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<ItemOwner>>,
}

#[derive(Deserialize)]
pub(super) struct ItemOwner {
    #[serde(default)]
    pub(super) uid: String,
}

impl ItemMetadata {
    /// Returns an object with this metadata and the selected labels and annotations.
    pub(super) fn into_object(self, is_read: fn(&str) -> bool) -> Value {
        let select = |map: BTreeMap<String, String>| {
            let read = map.into_iter().filter(|(key, _)| is_read(key)).take(MAX_KEPT);
            let short = |value: String| if value.len() > MAX_KEPT_VALUE { String::new() } else { value };
            read.map(|(key, value)| (key, Value::from(short(value)))).collect::<Map<_, _>>()
        };
        let texts = [
            ("name", Some(self.name)),
            ("namespace", Some(self.namespace).filter(|text| !text.is_empty())),
            ("uid", Some(self.uid)),
            ("resourceVersion", Some(self.resource_version)),
            ("deletionTimestamp", self.deletion_timestamp),
        ];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
        let mut metadata: Map<String, Value> = texts.collect();
        for (key, map) in [("labels", self.labels), ("annotations", self.annotations)] {
            metadata.extend(map.map(|map| (key.to_owned(), select(map).into())));
        }
        let owners = self.owner_references.unwrap_or_default();
        if !owners.is_empty() {
            // An owner without a UID is in no namespace.
            let unknown = (owners.len() > MAX_OWNERS).then(|| json!({}));
            let owners = owners
                .into_iter()
                .take(MAX_OWNERS)
                .map(|owner| if owner.uid.len() > MAX_UID { json!({}) } else { json!({"uid": owner.uid}) });
            metadata.insert("ownerReferences".to_owned(), owners.chain(unknown).collect());
        }
        json!({"metadata": metadata})
    }
}
