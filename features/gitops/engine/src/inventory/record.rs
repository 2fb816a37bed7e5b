//! The record as it is stored.
//!
//! UIDs are random, so that compression does not shorten them, and a ConfigMap has at most 1 MiB: each UID is stored once, with all that is
//! known of its object.

use std::collections::BTreeMap;

use proto::gitops::ObjectId;
use serde::{Deserialize, Serialize};

use super::{Deletions, HeldPlan, Inventory};

/// A record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    parent: String,
    generation: u64,
    /// The objects by their UIDs.
    objects: BTreeMap<String, RecordedObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<RecordedPlan>,
    /// The digests of the manifests of jobs that were applied, by their objects.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    jobs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    suspended: bool,
}

/// The entry of one UID.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct RecordedObject {
    /// The object, if it is a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<ObjectId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    added: bool,
    /// It is in the plan that is held, with these volume claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<String>,
    /// It was in the plan that is held.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hindered: bool,
    /// Its deletion was approved, with these volume claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    approved: Option<String>,
    /// The time at which its deletion was begun without an approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<u64>,
}

/// The plan that is held, without its objects.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct RecordedPlan {
    code: String,
    reason: String,
    commit: String,
    since: u64,
}

impl From<Inventory> for Record {
    fn from(inventory: Inventory) -> Self {
        let Inventory { parent, generation, members, added, held, approved, deletions, jobs, suspended } =
            inventory;
        let mut objects: BTreeMap<String, RecordedObject> = BTreeMap::new();
        for (uid, id) in members {
            objects.entry(uid).or_default().member = Some(id);
        }
        for uid in added {
            objects.entry(uid).or_default().added = true;
        }
        let held = held.map(|HeldPlan { code, reason, commit, since, objects: waiting, others }| {
            for (uid, claims) in waiting {
                objects.entry(uid).or_default().held = Some(claims);
            }
            for uid in others {
                objects.entry(uid).or_default().hindered = true;
            }
            RecordedPlan { code, reason, commit, since }
        });
        for (uid, claims) in approved {
            objects.entry(uid).or_default().approved = Some(claims);
        }
        for Deletions { at, uids } in deletions {
            for uid in uids {
                objects.entry(uid).or_default().deleted = Some(at);
            }
        }
        Self { parent, generation, objects, held, jobs, suspended }
    }
}

impl From<Record> for Inventory {
    fn from(record: Record) -> Self {
        let Record { parent, generation, objects, held, jobs, suspended } = record;
        let mut inventory = Self { parent, generation, jobs, suspended, ..Self::default() };
        let mut plan = held.map(|RecordedPlan { code, reason, commit, since }| HeldPlan {
            code,
            reason,
            commit,
            since,
            ..HeldPlan::default()
        });
        let mut deletions: BTreeMap<u64, Deletions> = BTreeMap::new();
        for (uid, object) in objects {
            let RecordedObject { member, added, held, hindered, approved, deleted } = object;
            if let Some(plan) = &mut plan {
                if hindered {
                    plan.others.insert(uid.clone());
                }
                plan.objects.extend(held.map(|claims| (uid.clone(), claims)));
            }
            if added {
                inventory.added.insert(uid.clone());
            }
            inventory.approved.extend(approved.map(|claims| (uid.clone(), claims)));
            if let Some(at) = deleted {
                let begun = deletions.entry(at).or_insert_with(|| Deletions { at, ..Deletions::default() });
                begun.uids.insert(uid.clone());
            }
            inventory.members.extend(member.map(|id| (uid, id)));
        }
        inventory.held = plan;
        inventory.deletions = deletions.into_values().collect();
        inventory
    }
}
