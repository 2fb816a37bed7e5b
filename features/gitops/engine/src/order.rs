//! The order in which objects are applied: phases of hooks, waves, then stages within a wave, then dependencies within a stage.
//!
//! | stage | objects | the next stage waits until they |
//! |---|---|---|
//! | definitions | CustomResourceDefinition, Namespace, ClusterRole | exist, and definitions are established |
//! | classes | kinds that end in `Class` | exist |
//! | others | all others, by kind | exist |
//! | webhooks | webhook configurations | |
//!
//! Waves are those of Argo CD (`argocd.argoproj.io/sync-wave`), dependencies those of `kubectl`'s cli-utils
//! (`config.kubernetes.io/depends-on`). A wave waits until all objects of the wave before it do their work, and an object until its
//! dependencies do. A phase waits for all objects of the phase before it, and each stage for its own hooks that run.

use std::collections::HashMap;

use kube_cluster::GroupKind;
use proto::gitops::{ObjectError, ObjectId};

use crate::{
    Manifest,
    hook::{self, HELM_WEIGHT, Phase, Role},
    validate::DEFINITIONS,
};

/// The annotation with the wave of an object, a whole number. The default is 0.
pub const WAVE: &str = "argocd.argoproj.io/sync-wave";
/// The annotation with the objects that an object depends on: `group/kind/name` or `group/namespaces/namespace/kind/name`, separated
/// by commas.
pub const DEPENDS_ON: &str = "config.kubernetes.io/depends-on";

/// Kinds in the order in which they are applied within a stage. Others come after them.
const KINDS: [&str; 17] = [
    "PriorityClass",
    "ResourceQuota",
    "LimitRange",
    "NetworkPolicy",
    "ServiceAccount",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Secret",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Service",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];

/// Objects that are applied together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStage {
    /// The objects, as indices, in their order.
    pub objects: Vec<usize>,
    /// The objects of this stage or of earlier ones that do their work before the next stage begins, as indices.
    pub healthy: Vec<usize>,
    /// The definitions of this stage are established before the next stage begins.
    pub established: bool,
    /// The hooks that are deleted when this stage has ended: it is the last one of their phase.
    pub deleted: Vec<usize>,
}

/// The place of an object: phase, wave, stage, and the length of the longest chain of dependencies in that stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ApplyRank {
    phase: Phase,
    wave: i32,
    stage: u8,
    level: usize,
}

const DEFINITION: u8 = 0;
const WEBHOOK: u8 = 3;

/// Returns the stages.
///
/// # Errors
///
/// The errors of all objects: a hook that agentk does not run, a wave that is no number, a dependency that is unknown, circular, or in a
/// later wave or stage.
pub fn stages(manifests: &[Manifest]) -> Result<Vec<SyncStage>, Vec<ObjectError>> {
    let mut errors = Vec::new();
    let (places, dependencies) = places(manifests, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut order: Vec<usize> =
        (0..manifests.len()).filter(|index| !hook::is_skipped(&manifests[*index])).collect();
    order.sort_by_key(|index| (places[*index], rank(&manifests[*index]), &manifests[*index].id));
    let mut stages: Vec<(ApplyRank, SyncStage)> = Vec::new();
    for index in order {
        match stages.last_mut() {
            Some((place, stage)) if *place == places[index] => stage.objects.push(index),
            _ => {
                let stage = SyncStage { objects: vec![index], ..SyncStage::default() };
                stages.push((places[index], stage));
            }
        }
    }
    for index in 1..stages.len() {
        let (before, (next, following)) = (&stages[..index], &stages[index]);
        let place = before[index - 1].0;
        let is_same = |before: ApplyRank| {
            if next.phase > place.phase {
                before.phase == place.phase
            } else {
                (before.phase, before.wave) == (place.phase, place.wave)
            }
        };
        let healthy: Vec<usize> = if (next.phase, next.wave) > (place.phase, place.wave) {
            let wave = before.iter().filter(|(before, _)| is_same(*before));
            wave.flat_map(|(_, stage)| &stage.objects).copied().collect()
        } else {
            following.objects.iter().flat_map(|object| &dependencies[*object]).copied().collect()
        };
        let stage = &mut stages[index - 1].1;
        (stage.healthy, stage.established) = (healthy, place.stage == DEFINITION);
    }
    let mut deleted = Vec::new();
    for index in 0..stages.len() {
        let is_last = stages.get(index + 1).is_none_or(|(next, _)| next.phase > stages[index].0.phase);
        let stage = &mut stages[index].1;
        let of_stage = |is: fn(&Manifest) -> bool| {
            let hooks = stage.objects.iter().filter(move |index| is(&manifests[**index]));
            hooks.copied().collect::<Vec<_>>()
        };
        deleted.extend(of_stage(hook::is_deleted_at_end));
        stage.healthy.extend(of_stage(hook::runs));
        stage.healthy.sort_unstable();
        stage.healthy.dedup();
        if is_last {
            stage.deleted = std::mem::take(&mut deleted);
        }
    }
    Ok(stages.into_iter().map(|(_, stage)| stage).collect())
}

/// Returns the order in which objects are deleted: the reverse of that in which they would be applied.
pub fn deletion_rank(id: &ObjectId) -> (u8, usize) {
    let (stage, kind) = (stage_of(id), kind_rank(id));
    (WEBHOOK - stage.min(WEBHOOK), usize::MAX - kind)
}

/// Returns the places of all objects, and the dependencies of each.
fn places(manifests: &[Manifest], errors: &mut Vec<ObjectError>) -> (Vec<ApplyRank>, Vec<Vec<usize>>) {
    let by_id: HashMap<&ObjectId, usize> =
        manifests.iter().enumerate().map(|(index, manifest)| (&manifest.id, index)).collect();
    let mut places = Vec::with_capacity(manifests.len());
    let mut dependencies = Vec::with_capacity(manifests.len());
    for manifest in manifests {
        let role = Role::of(manifest).unwrap_or_else(|error| {
            errors.push(manifest.error(error));
            Role::Object
        });
        let (phase, keys) = match role {
            Role::Hook(phase) => (phase, &[WAVE, HELM_WEIGHT][..]),
            Role::Object | Role::Skipped => (Phase::Main, &[WAVE][..]),
        };
        let of_key = |key: &&'static str| Some((*key, manifest.annotation(key)?));
        let (key, wave) = keys.iter().find_map(of_key).unwrap_or((WAVE, "0"));
        let wave = wave.trim().parse().unwrap_or_else(|_| {
            errors.push(manifest.error(format!("the annotation {key} is {wave:?}, and not a whole number")));
            0
        });
        places.push(ApplyRank { phase, wave, stage: stage_of(&manifest.id), level: 0 });
        dependencies.push(dependencies_of(manifest, &by_id, errors));
    }
    if errors.is_empty() {
        let mut walk = Walk {
            manifests,
            dependencies: &dependencies,
            visited: vec![Visit::No; manifests.len()],
            places,
            errors,
        };
        for index in 0..manifests.len() {
            walk.visit(index);
        }
        places = walk.places;
    }
    (places, dependencies)
}

fn dependencies_of(
    manifest: &Manifest,
    by_id: &HashMap<&ObjectId, usize>,
    errors: &mut Vec<ObjectError>,
) -> Vec<usize> {
    let Some(text) = manifest.annotation(DEPENDS_ON) else { return Vec::new() };
    let mut found = Vec::new();
    for reference in text.split(',').map(str::trim).filter(|reference| !reference.is_empty()) {
        match parse_reference(reference).and_then(|id| by_id.get(&id).copied()) {
            Some(index) => found.push(index),
            None => errors.push(manifest.error(format!(
                "the annotation {DEPENDS_ON} names {reference:?}, which is not in this project: write group/kind/name or \
                 group/namespaces/namespace/kind/name"
            ))),
        }
    }
    found
}

fn parse_reference(text: &str) -> Option<ObjectId> {
    let parts: Vec<&str> = text.split('/').collect();
    let (group, namespace, kind, name) = match parts[..] {
        [group, kind, name] => (group, "", kind, name),
        [group, "namespaces", namespace, kind, name] => (group, namespace, kind, name),
        _ => return None,
    };
    let text = str::to_owned;
    Some(ObjectId { group: text(group), kind: text(kind), namespace: text(namespace), name: text(name) })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    No,
    Active,
    Done,
}

/// The computation of levels, depth first.
struct Walk<'a> {
    manifests: &'a [Manifest],
    dependencies: &'a [Vec<usize>],
    visited: Vec<Visit>,
    places: Vec<ApplyRank>,
    errors: &'a mut Vec<ObjectError>,
}

impl Walk<'_> {
    /// Sets the levels of an object and of all that it depends on. Chains are walked with a stack of our own, because Git decides
    /// how long they are.
    fn visit(&mut self, start: usize) {
        let mut stack = vec![(start, 0)];
        while let Some((index, next)) = stack.pop() {
            if next == 0 {
                if self.visited[index] != Visit::No {
                    continue;
                }
                self.visited[index] = Visit::Active;
            }
            let Some(dependency) = self.dependencies[index].get(next).copied() else {
                self.visited[index] = Visit::Done;
                self.place(index);
                continue;
            };
            stack.push((index, next + 1));
            match self.visited[dependency] {
                Visit::No => stack.push((dependency, 0)),
                Visit::Done => {}
                Visit::Active => {
                    let what = format!(
                        "the dependencies are circular: {} depends on this object, too",
                        self.manifests[dependency].id
                    );
                    self.errors.push(self.manifests[index].error(what));
                    return;
                }
            }
        }
    }

    /// Sets the level of an object whose dependencies have theirs.
    fn place(&mut self, index: usize) {
        let mut place = self.places[index];
        for dependency in &self.dependencies[index] {
            let before = self.places[*dependency];
            let order = |place: ApplyRank| (place.phase, place.wave, place.stage);
            if order(before) > order(place) {
                let what = format!(
                    "it depends on {}, which is applied in a later wave or stage",
                    self.manifests[*dependency].id
                );
                self.errors.push(self.manifests[index].error(what));
            } else if order(before) == order(place) {
                place.level = place.level.max(before.level + 1);
            }
        }
        self.places[index] = place;
    }
}

fn stage_of(id: &ObjectId) -> u8 {
    match (&*id.group, &*id.kind) {
        DEFINITIONS | ("", "Namespace") | ("rbac.authorization.k8s.io", "ClusterRole") => DEFINITION,
        ("admissionregistration.k8s.io", kind) if kind.ends_with("WebhookConfiguration") => WEBHOOK,
        (_, kind) if kind.ends_with("Class") => 1,
        _ => 2,
    }
}

fn kind_rank(id: &ObjectId) -> usize {
    KINDS.iter().position(|kind| *kind == id.kind).unwrap_or(KINDS.len())
}

fn rank(manifest: &Manifest) -> (usize, GroupKind) {
    (kind_rank(&manifest.id), manifest.group_kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceFile, parse};

    /// Objects as `kind name [annotation value]`, one on each line.
    fn stages_of(text: &str) -> Result<Vec<String>, Vec<String>> {
        let yaml: String = text
            .lines()
            .map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let annotations: String =
                    words[2..].chunks(2).map(|pair| format!("{}: '{}', ", pair[0], pair[1])).collect();
                let annotations = format!(", annotations: {{{annotations}}}");
                let api = match words[0] {
                    "CustomResourceDefinition" => "apiextensions.k8s.io/v1",
                    "ClusterRole" => "rbac.authorization.k8s.io/v1",
                    "Deployment" => "apps/v1",
                    "Job" => "batch/v1",
                    "IngressClass" => "networking.k8s.io/v1",
                    "ValidatingWebhookConfiguration" => "admissionregistration.k8s.io/v1",
                    _ => "v1",
                };
                format!(
                    "---\napiVersion: {api}\nkind: {}\nmetadata: {{name: {}{annotations}}}\n",
                    words[0], words[1]
                )
            })
            .collect();
        let file = SourceFile { path: "a.yaml".to_owned(), content: yaml.into() };
        let manifests = parse::parse(&[file]).unwrap();
        let stages = stages(&manifests);
        let stages =
            stages.map_err(|errors| errors.into_iter().map(|error| error.message).collect::<Vec<_>>())?;
        Ok(stages
            .into_iter()
            .map(|stage| {
                let names: Vec<_> = stage.objects.iter().map(|index| &*manifests[*index].id.name).collect();
                let healthy: Vec<_> = stage.healthy.iter().map(|index| &*manifests[*index].id.name).collect();
                let established = if stage.established { " established" } else { "" };
                let deleted: String = stage
                    .deleted
                    .iter()
                    .map(|index| format!(", delete {}", manifests[*index].id.name))
                    .collect();
                if healthy.is_empty() {
                    format!("{}{established}{deleted}", names.join(","))
                } else {
                    format!("{}{established}, then {}{deleted}", names.join(","), healthy.join(","))
                }
            })
            .collect())
    }

    #[test]
    fn definitions_come_first_and_webhooks_last() {
        let stages = stages_of(
            "ValidatingWebhookConfiguration hook\nDeployment web\nService svc\nConfigMap cm\nServiceAccount sa\nNamespace ns\n\
             IngressClass class\nCustomResourceDefinition crd\nClusterRole role\nToy toy",
        );
        assert_eq!(stages.unwrap(), ["ns,crd,role established", "class", "sa,cm,svc,web,toy", "hook"],);
    }

    #[test]
    fn waves_and_dependencies_wait_for_health() {
        let stages = stages_of(
            "ConfigMap late argocd.argoproj.io/sync-wave 2\nConfigMap early argocd.argoproj.io/sync-wave -1\nConfigMap a \
             config.kubernetes.io/depends-on /ConfigMap/b\nConfigMap b config.kubernetes.io/depends-on /ConfigMap/c\nConfigMap c",
        );
        assert_eq!(
            stages.unwrap(),
            ["early, then early", "c, then c", "b, then b", "a, then a,b,c", "late"],
            "names are those of the objects that must do their work"
        );
    }

    #[test]
    fn wave_and_dependency_wait_for_objects_of_earlier_stages() {
        let stages = stages_of(
            "Namespace ns\nDeployment web\nValidatingWebhookConfiguration hook config.kubernetes.io/depends-on apps/Deployment/web\n\
             ConfigMap late argocd.argoproj.io/sync-wave 1",
        );
        assert_eq!(stages.unwrap(), ["ns established", "web, then web", "hook, then ns,web,hook", "late"]);
    }

    #[test]
    fn hooks_are_phases_before_and_after_all_waves() {
        let stages = stages_of(
            "ConfigMap late argocd.argoproj.io/sync-wave 1\nNamespace ns\nDeployment web\nConfigMap left argocd.argoproj.io/hook Skip\n\
             Job after argocd.argoproj.io/hook PostSync argocd.argoproj.io/hook-delete-policy HookSucceeded\n\
             Job first argocd.argoproj.io/hook PreSync argocd.argoproj.io/sync-wave -1\nJob with argocd.argoproj.io/hook Sync\n\
             ServiceAccount sa helm.sh/hook pre-install helm.sh/hook-weight -5 helm.sh/hook-delete-policy hook-succeeded\n\
             Job migrate helm.sh/hook pre-upgrade",
        );
        let expected = [
            "sa, then sa",
            "first, then first",
            "migrate, then first,sa,migrate, delete sa",
            "ns established",
            "web,with, then ns,web,with",
            "late, then late,ns,web,with",
            "after, then after, delete after",
        ];
        assert_eq!(stages.unwrap(), expected);
    }

    #[test]
    fn wrong_annotation_is_refused() {
        for (text, expected) in [
            ("ConfigMap a argocd.argoproj.io/sync-wave soon", "is \"soon\", and not a whole number"),
            (
                "Job a helm.sh/hook pre-install helm.sh/hook-weight x",
                "helm.sh/hook-weight is \"x\", and not a whole number",
            ),
            ("Job a argocd.argoproj.io/hook SyncFail", "agentk runs no SyncFail hooks"),
            ("ConfigMap a config.kubernetes.io/depends-on /ConfigMap/b", "not in this project"),
            ("ConfigMap a config.kubernetes.io/depends-on b", "not in this project"),
            ("ConfigMap a config.kubernetes.io/depends-on /ConfigMap/a", "circular"),
            (
                "ConfigMap a config.kubernetes.io/depends-on /ConfigMap/b\nConfigMap b config.kubernetes.io/depends-on /ConfigMap/a",
                "circular",
            ),
            (
                "Namespace a config.kubernetes.io/depends-on /ConfigMap/b\nConfigMap b",
                "applied in a later wave or stage",
            ),
        ] {
            let errors = stages_of(text).unwrap_err();
            assert!(errors[0].contains(expected), "{text}: {errors:?}");
        }
    }

    #[test]
    fn long_chain_of_dependencies_needs_no_stack() {
        let chain: Vec<_> = (0..5000)
            .map(|i| format!("ConfigMap c{i} config.kubernetes.io/depends-on /ConfigMap/c{}", i + 1))
            .collect();
        let stages = stages_of(&format!("{}\nConfigMap c5000", chain.join("\n"))).unwrap();
        assert_eq!((stages.len(), &*stages[0]), (5001, "c5000, then c5000"));
    }
}
