//! Hooks of Argo CD and of Helm: objects that are applied before or after all others.
//!
//! | phase | Argo CD | Helm |
//! |---|---|---|
//! | [`Phase::Before`] | `PreSync` | `pre-install`, `pre-upgrade` |
//! | [`Phase::Main`] | `Sync` | |
//! | [`Phase::After`] | `PostSync` | `post-install`, `post-upgrade` |
//!
//! A hook that runs, such as a Job, runs once for each version of the manifests of its project. The annotation [`RUN`] has the version.

use proto::gitops::ObjectId;
use sha2::{Digest as _, Sha256};

use crate::Manifest;

/// The annotation with the phases of a hook of Argo CD.
const ARGO_HOOK: &str = "argocd.argoproj.io/hook";
/// The annotation with the events of a hook of Helm.
const HELM_HOOK: &str = "helm.sh/hook";
/// The annotation with the order of the hooks of Helm in a phase.
pub(crate) const HELM_WEIGHT: &str = "helm.sh/hook-weight";
/// The annotations that say when a hook is deleted, with the word for a hook that has succeeded.
const DELETE_POLICIES: [(&str, &str); 2] = [
    ("argocd.argoproj.io/hook-delete-policy", "HookSucceeded"),
    ("helm.sh/hook-delete-policy", "hook-succeeded"),
];
/// Events of Helm that agentk does not have: nothing is uninstalled, rolled back or tested.
const OTHER_EVENTS: [&str; 7] =
    ["pre-delete", "post-delete", "pre-rollback", "post-rollback", "test", "test-success", "test-failure"];
/// The annotation of a hook that runs with the version of the manifests for which it runs.
pub(crate) const RUN: &str = "agentk/hook-run";

/// The role of an object in a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is applied.
    Object,
    /// It is applied in a phase.
    Hook(Phase),
    /// It is not applied.
    Skipped,
}

/// A hook that agentk does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HookError {
    #[error(
        "agentk runs no {event} hooks ({annotation}): remove the object or the annotation, or leave the object out with the annotation \
         {ARGO_HOOK}: Skip"
    )]
    UnknownEvent { event: String, annotation: &'static str },
    #[error("agentk runs a hook in one phase, and {annotation} is {value:?}: write an object for each phase")]
    SeveralPhases { annotation: &'static str, value: String },
}

/// A part of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Before all objects that are not hooks.
    Before,
    /// With them.
    #[default]
    Main,
    /// When all of them are healthy.
    After,
}

impl Role {
    /// Returns the role of an object.
    ///
    /// # Errors
    ///
    /// It is a hook that agentk does not run.
    pub(crate) fn of(manifest: &Manifest) -> Result<Self, HookError> {
        let (key, phase_of): (_, fn(&str) -> Option<Phase>) = match manifest.annotation(ARGO_HOOK) {
            Some(_) => (ARGO_HOOK, argo_phase),
            None => (HELM_HOOK, helm_phase),
        };
        let Some(text) = manifest.annotation(key) else { return Ok(Self::Object) };
        let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        if words.contains(&"Skip") && key == ARGO_HOOK {
            return Ok(Self::Skipped);
        }
        // As in Argo CD, definitions of Helm 2 are no hooks.
        if words.is_empty() || words == ["crd-install"] {
            return Ok(Self::Object);
        }
        let mut phases = Vec::new();
        for word in words.iter().filter(|word| key == ARGO_HOOK || !OTHER_EVENTS.contains(word)) {
            let unknown = || HookError::UnknownEvent { event: (*word).to_owned(), annotation: key };
            phases.push(phase_of(word).ok_or_else(unknown)?);
        }
        phases.dedup();
        match phases[..] {
            [] => Ok(Self::Skipped),
            [phase] => Ok(Self::Hook(phase)),
            _ => Err(HookError::SeveralPhases { annotation: key, value: text.to_owned() }),
        }
    }
}

/// Returns whether an object is not applied.
pub(crate) fn is_skipped(manifest: &Manifest) -> bool {
    Role::of(manifest) == Ok(Role::Skipped)
}

/// Returns whether an object is a hook that runs and ends. It is deleted and created again for each version of the manifests.
pub(crate) fn runs(manifest: &Manifest) -> bool {
    let ObjectId { group, kind, .. } = &manifest.id;
    let ends = [("batch", "Job"), ("", "Pod"), ("argoproj.io", "Workflow")].contains(&(&**group, &**kind));
    ends && is_hook(manifest)
}

/// Returns whether an object is a hook that is deleted when all hooks of its phase have succeeded.
pub(crate) fn is_deleted_at_end(manifest: &Manifest) -> bool {
    let has_policy = |(key, policy): &(&str, &str)| {
        manifest.annotation(key).is_some_and(|text| text.split(',').any(|word| word.trim() == *policy))
    };
    is_hook(manifest) && DELETE_POLICIES.iter().any(has_policy)
}

/// Returns whether an object is a hook that is not created again in the same version of the manifests.
pub(crate) fn is_once(manifest: &Manifest) -> bool {
    runs(manifest) || is_deleted_at_end(manifest)
}

fn is_hook(manifest: &Manifest) -> bool {
    matches!(Role::of(manifest), Ok(Role::Hook(_)))
}

/// Gives hooks the version of the manifests for which they run. `digest` returns the digest of a manifest.
pub(crate) fn set_run(manifests: &mut [Manifest], digest: impl Fn(&Manifest) -> String) {
    if !manifests.iter().any(is_once) {
        return;
    }
    // The order of the files is of no matter.
    let mut digests: Vec<String> = manifests.iter().map(digest).collect();
    digests.sort_unstable();
    let run = Sha256::digest(digests.concat());
    let run: String = run.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    for hook in manifests.iter_mut().filter(|manifest| is_once(manifest)) {
        hook.object["metadata"]["annotations"][RUN] = run.as_str().into();
    }
}

fn argo_phase(word: &str) -> Option<Phase> {
    match word {
        "PreSync" => Some(Phase::Before),
        "Sync" => Some(Phase::Main),
        "PostSync" => Some(Phase::After),
        _ => None,
    }
}

fn helm_phase(word: &str) -> Option<Phase> {
    match word {
        "pre-install" | "pre-upgrade" => Some(Phase::Before),
        "post-install" | "post-upgrade" => Some(Phase::After),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SourceFile, parse};

    fn job(annotations: &str) -> Manifest {
        let yaml = format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a, annotations: {{{annotations}}}}}\n"
        );
        parse::parse(&[SourceFile { path: "a.yaml".to_owned(), content: yaml.into() }]).unwrap().remove(0)
    }

    #[test]
    fn annotations_of_argo_cd_and_helm_decide_on_the_phase() {
        for (annotations, expected) in [
            ("", Role::Object),
            ("argocd.argoproj.io/hook: PreSync", Role::Hook(Phase::Before)),
            ("argocd.argoproj.io/hook: Sync", Role::Hook(Phase::Main)),
            ("argocd.argoproj.io/hook: PostSync", Role::Hook(Phase::After)),
            ("argocd.argoproj.io/hook: Skip", Role::Skipped),
            ("argocd.argoproj.io/hook: PostSync, helm.sh/hook: pre-install", Role::Hook(Phase::After)),
            ("helm.sh/hook: 'pre-install,pre-upgrade'", Role::Hook(Phase::Before)),
            ("helm.sh/hook: 'post-install, post-delete'", Role::Hook(Phase::After)),
            ("helm.sh/hook: test", Role::Skipped),
            ("helm.sh/hook: pre-delete", Role::Skipped),
            ("helm.sh/hook: crd-install", Role::Object),
        ] {
            assert_eq!(Role::of(&job(annotations)), Ok(expected), "{annotations}");
        }
    }

    #[test]
    fn hook_that_agentk_does_not_run_is_refused_by_name() {
        for (annotations, expected) in [
            ("argocd.argoproj.io/hook: SyncFail", "agentk runs no SyncFail hooks (argocd.argoproj.io/hook)"),
            ("argocd.argoproj.io/hook: 'PreSync,PostDelete'", "agentk runs no PostDelete hooks"),
            ("argocd.argoproj.io/hook: 'PreSync,PostSync'", "agentk runs a hook in one phase"),
            ("helm.sh/hook: pre-instal", "agentk runs no pre-instal hooks (helm.sh/hook)"),
            ("helm.sh/hook: 'pre-install,post-upgrade'", "write an object for each phase"),
        ] {
            let error = Role::of(&job(annotations)).unwrap_err().to_string();
            assert!(error.contains(expected), "{annotations}: {error}");
        }
    }

    #[test]
    fn hook_is_deleted_when_it_has_succeeded_if_its_policy_says_so() {
        for (annotations, expected) in [
            (
                "argocd.argoproj.io/hook: Sync, argocd.argoproj.io/hook-delete-policy: 'BeforeHookCreation, HookSucceeded'",
                true,
            ),
            (
                "helm.sh/hook: post-install, helm.sh/hook-delete-policy: 'before-hook-creation,hook-succeeded'",
                true,
            ),
            ("argocd.argoproj.io/hook: Sync, argocd.argoproj.io/hook-delete-policy: HookFailed", false),
            ("argocd.argoproj.io/hook-delete-policy: HookSucceeded", false),
        ] {
            assert_eq!(is_deleted_at_end(&job(annotations)), expected, "{annotations}");
        }
    }
}
