//! What agentk remembers of a project: its members, the plan of deletions that is held, and the deletions of the last hour.
//!
//! It is a ConfigMap beside the parent of the ApplySet, because the parent has a status that is read often. The two name each other, so
//! that the loss of one of them is no project without objects.

mod record;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _},
};

use base64::{DecodeError, Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use proto::gitops::ObjectId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::record::Record;
use crate::applyset::{ApplySet, PROJECT};

/// The annotation of the parent with the generation of the record.
pub const GENERATION: &str = "agentk/generation";
/// The field manager of the record and of its generation. An older agentk, which does not know them, leaves them alone.
pub(crate) const MANAGER: &str = "agentk-inventory";
/// The label `app.kubernetes.io/component` of the record.
pub const COMPONENT: &str = "gitops-members";
/// The key of the record in its ConfigMap.
const KEY: &str = "inventory.json.gz";
/// The largest record, in bytes. One of 20,000 objects has less than 4 MiB.
const MAX_BYTES: u64 = 32 << 20;

/// The record of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Record", from = "Record")]
pub struct Inventory {
    /// The UID of the parent. A copy of the parent has another one.
    pub parent: String,
    /// The number of times that the record was written.
    pub generation: u64,
    /// The objects by their UIDs.
    pub members: BTreeMap<String, ObjectId>,
    /// The UIDs of members that were applied since a commit was complete for the last time.
    pub added: BTreeSet<String>,
    /// The plan that waits for an approval.
    pub held: Option<HeldPlan>,
    /// The UIDs of objects whose deletion was approved, and that are still there, with the volume claims that may go with them, separated
    /// by commas.
    pub approved: BTreeMap<String, String>,
    /// The deletions without an approval of the last hour.
    pub deletions: Vec<Deletions>,
    /// The digests of the manifests of jobs that were applied, by their objects.
    pub jobs: BTreeMap<String, String>,
    /// A command has suspended the project.
    pub suspended: bool,
}

/// Deletions that wait for an approval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldPlan {
    /// The code that approves it.
    pub code: String,
    /// The reason in one sentence.
    pub reason: String,
    /// The commit that would have deleted first.
    pub commit: String,
    /// The time since when it is held, in milliseconds since 1970.
    pub since: u64,
    /// The UIDs of the objects that the code approves, with the volume claims that may go with them, separated by commas.
    pub objects: BTreeMap<String, String>,
    /// The UIDs of objects that were in the plan, and that cannot be deleted now for another reason, too.
    pub others: BTreeSet<String>,
}

/// Deletions that were begun at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deletions {
    /// The time in milliseconds since 1970.
    pub at: u64,
    /// The UIDs of the objects.
    pub uids: BTreeSet<String>,
}

/// A ConfigMap whose record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It has no record.
    #[error("it has no record")]
    Missing,
    /// The record is not in base64.
    #[error(transparent)]
    Base64(#[from] DecodeError),
    /// The record is not compressed with gzip.
    #[error(transparent)]
    Gzip(#[from] io::Error),
    /// The record is larger than any that agentk writes.
    #[error("the record has over {MAX_BYTES} bytes")]
    TooLarge,
    /// The record is not the JSON that agentk writes.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The parent, as far as it says something about the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParentState {
    /// The UID.
    pub uid: String,
    /// The generation of the record that belongs to it, or 0 before the first one.
    pub generation: u64,
    /// A sync has begun with it.
    pub is_used: bool,
}

/// The result of a look at the parent and the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InventoryState {
    /// Both are there and belong together.
    Known(Box<Inventory>),
    /// No commit was complete yet, or an older agentk has synced the project.
    Unrecorded,
    /// There is no trace of a sync. Objects of the project in the cluster prove that the inventory was lost.
    Absent,
    /// The inventory was lost. The text is the reason.
    Lost(&'static str),
}

impl Inventory {
    /// Returns whether a UID is that of a member.
    pub fn has(&self, uid: &str) -> bool {
        self.members.contains_key(uid)
    }

    /// Returns the members when a commit was complete for the last time.
    pub fn complete_members(&self) -> impl Iterator<Item = &String> {
        self.members.keys().filter(|uid| !self.added.contains(*uid))
    }

    /// Returns the ConfigMap of the record for a server-side apply.
    pub(crate) fn to_object(&self, set: &ApplySet) -> Value {
        let (_, id) = set.record_id();
        let text = serde_json::to_vec(self).expect("it has keys that are text");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        io::Write::write_all(&mut encoder, &text).expect("a vector accepts all bytes");
        let compressed = encoder.finish().expect("a vector accepts all bytes");
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": id.name,
                "namespace": id.namespace,
                "labels": {"app.kubernetes.io/component": COMPONENT, "app.kubernetes.io/managed-by": "agentk"},
                "annotations": {PROJECT: set.project},
            },
            "binaryData": {KEY: STANDARD.encode(compressed)},
        })
    }

    /// Returns whether a ConfigMap has a record. It is created without one.
    pub(crate) fn is_in(object: &Value) -> bool {
        object["binaryData"].get(KEY).is_some()
    }

    /// Reads the ConfigMap of the record. Whoever may write ConfigMaps in the namespace of agentk can change it.
    ///
    /// # Errors
    ///
    /// It has no record, or one that is broken or too large.
    pub fn from_object(object: &Value) -> Result<Self, RecordError> {
        let text = object["binaryData"][KEY].as_str().ok_or(RecordError::Missing)?;
        let compressed = STANDARD.decode(text)?;
        let mut decoded = Vec::new();
        let mut decoder = GzDecoder::new(&*compressed).take(MAX_BYTES + 1);
        decoder.read_to_end(&mut decoded)?;
        if decoded.len() as u64 > MAX_BYTES {
            return Err(RecordError::TooLarge);
        }
        Ok(serde_json::from_slice(&decoded)?)
    }
}

impl ParentState {
    /// Reads a parent. `set` is what it says about its members.
    pub(crate) fn new(parent: &Value, set: &ApplySet) -> Self {
        let generation = parent["metadata"]["annotations"][GENERATION].as_str().unwrap_or_default();
        Self {
            uid: parent["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            generation: generation.parse().unwrap_or(0),
            is_used: !set.kinds.is_empty(),
        }
    }
}

impl InventoryState {
    /// Looks at the parent and at the record, if they exist. `known` is the newest generation that this process has seen.
    ///
    /// A record is written before its generation is: a process that ends between the two leaves a record that is newer by one.
    pub(crate) fn new(
        parent: Option<&ParentState>,
        record: Option<Result<Inventory, RecordError>>,
        known: Option<u64>,
    ) -> Self {
        let before = known.unwrap_or(0).max(parent.map_or(0, |parent| parent.generation));
        match (parent, record) {
            (_, Some(Err(_))) => Self::Lost("its record cannot be read"),
            // The project was pruned completely.
            (None, Some(Ok(record)))
                if record.members.is_empty() && record.generation >= before && !record.suspended =>
            {
                Self::Absent
            }
            (None, Some(Ok(_))) => Self::Lost("the inventory was deleted"),
            (None, None) if known.is_some() => Self::Lost("the inventory was deleted"),
            (None, None) => Self::Absent,
            (Some(_), None) if before > 0 => Self::Lost("the record of its members was deleted"),
            (Some(parent), None) if parent.is_used => Self::Unrecorded,
            (Some(_), None) => Self::Absent,
            (Some(parent), Some(Ok(record))) => {
                if record.parent != parent.uid {
                    return if record.members.is_empty() && known.is_none() {
                        Self::Absent
                    } else {
                        Self::Lost(
                            "the inventory was deleted and created again, or copied from another cluster or a backup",
                        )
                    };
                }
                if record.generation < before {
                    return Self::Lost("the record of its members is older than the last sync");
                }
                if parent.generation + 1 < record.generation {
                    return Self::Lost("the inventory is older than the record of its members");
                }
                Self::Known(Box::new(record))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::AgentId;
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn record(generation: u64) -> Inventory {
        let id = ObjectId { kind: "ConfigMap".to_owned(), name: "a".to_owned(), ..ObjectId::default() };
        let members = BTreeMap::from([("u-1".to_owned(), id)]);
        Inventory { parent: "p".to_owned(), generation, members, ..Inventory::default() }
    }

    fn parent(generation: u64) -> ParentState {
        ParentState { uid: "p".to_owned(), generation, is_used: true }
    }

    #[test]
    fn record_survives_its_config_map() {
        let set = ApplySet::new(AgentId(7), "group/app", "agentk");
        let object = record(3).to_object(&set);
        assert_eq!(object["metadata"]["name"], format!("{}-members", set.name));
        assert_eq!(Inventory::from_object(&object).unwrap(), record(3));
        for broken in [json!({}), json!({"binaryData": {KEY: "?"}}), json!({"binaryData": {KEY: "aGVsbG8="}})]
        {
            assert!(Inventory::from_object(&broken).is_err());
        }
    }

    #[test]
    fn record_that_grows_without_end_is_refused() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        io::copy(&mut io::repeat(b' ').take(MAX_BYTES + 1), &mut encoder).unwrap();
        let object = json!({"binaryData": {KEY: STANDARD.encode(encoder.finish().unwrap())}});
        assert!(matches!(Inventory::from_object(&object), Err(RecordError::TooLarge)));
    }

    /// A plan to delete all of them, too, and its approval.
    #[test]
    fn twenty_thousand_members_fit_into_a_config_map() {
        let members = (0..20_000_u64).map(|n| {
            let hex: String =
                Sha256::digest(n.to_be_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..15], &hex[15..18], &hex[18..30]);
            let uid = format!("{a}-{b}-4{c}-a{d}-{e}");
            let name = format!("settings-of-the-service-{n}");
            (
                uid,
                ObjectId {
                    kind: "ConfigMap".to_owned(),
                    namespace: "shop".to_owned(),
                    name,
                    ..ObjectId::default()
                },
            )
        });
        let members: BTreeMap<_, _> = members.collect();
        let uids = || members.keys().cloned();
        let inventory = Inventory {
            added: uids().collect(),
            held: Some(HeldPlan {
                objects: uids().map(|uid| (uid, String::new())).collect(),
                others: uids().step_by(2).collect(),
                ..HeldPlan::default()
            }),
            approved: uids().map(|uid| (uid, String::new())).collect(),
            deletions: vec![Deletions { at: 1, uids: uids().collect() }],
            members: members.clone(),
            ..Inventory::default()
        };
        let set = ApplySet::new(AgentId(7), "group/app", "agentk");
        let object = inventory.to_object(&set);
        let size = object["binaryData"][KEY].as_str().unwrap().len() / 4 * 3;
        assert!(size < 7 << 17, "{size} bytes");
        assert_eq!(Inventory::from_object(&object).unwrap(), inventory);
    }

    #[test]
    fn missing_inventory_is_not_an_empty_one() {
        let state = |parent: Option<ParentState>, record: Option<Inventory>, known| match InventoryState::new(
            parent.as_ref(),
            record.map(Ok),
            known,
        ) {
            InventoryState::Known(_) => "known",
            InventoryState::Unrecorded => "unrecorded",
            InventoryState::Absent => "absent",
            InventoryState::Lost(_) => "lost",
        };
        assert_eq!(state(None, None, None), "absent", "a new project");
        assert_eq!(state(Some(ParentState { is_used: false, ..parent(0) }), None, None), "absent");
        assert_eq!(state(Some(parent(0)), None, None), "unrecorded", "its first sync was interrupted");
        assert_eq!(state(Some(parent(3)), Some(record(3)), None), "known");
        assert_eq!(
            state(Some(parent(3)), Some(record(4)), Some(3)),
            "known",
            "interrupted between two writes"
        );
        assert_eq!(state(Some(parent(0)), Some(record(1)), None), "known");

        assert_eq!(state(None, Some(record(3)), None), "lost");
        assert_eq!(state(None, None, Some(3)), "lost");
        assert_eq!(state(Some(parent(3)), None, None), "lost");
        assert_eq!(state(Some(parent(0)), None, Some(3)), "lost");
        assert_eq!(state(Some(parent(3)), Some(record(2)), None), "lost", "the record is older");
        assert_eq!(
            state(Some(parent(3)), Some(record(3)), Some(4)),
            "lost",
            "both are older than this process"
        );
        assert_eq!(state(Some(parent(3)), Some(record(5)), None), "lost", "the parent is older");
        let copy = ParentState { uid: "q".to_owned(), ..parent(3) };
        assert_eq!(state(Some(copy.clone()), Some(record(3)), None), "lost");
        let broken = InventoryState::new(Some(&parent(3)), Some(Err(RecordError::Missing)), None);
        assert!(matches!(broken, InventoryState::Lost(_)));

        let pruned = Inventory { members: BTreeMap::new(), ..record(3) };
        assert_eq!(state(None, Some(pruned.clone()), None), "absent", "the project was pruned before");
        assert_eq!(state(None, Some(pruned.clone()), Some(3)), "absent", "by this process");
        assert_eq!(state(None, Some(pruned.clone()), Some(4)), "lost", "it had members since then");
        let suspended = Inventory { suspended: true, ..pruned.clone() };
        assert_eq!(state(None, Some(suspended), None), "lost");
        assert_eq!(state(Some(copy), Some(pruned), None), "absent");
    }
}
