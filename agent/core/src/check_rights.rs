//! The step of `agentk check` for the rights that a feature needs.

use futures_util::{FutureExt as _, future::LocalBoxFuture};

use crate::{
    ServiceError,
    check_report::{CheckReport, REVIEW_HINT, StepError, failed},
    feature::{CheckContext, FeatureCheck},
    services::KubernetesService,
};

/// Rights for resources of an API group.
#[derive(Clone, Copy, Debug)]
pub struct NeededRights {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resources, in the plural.
    pub resources: &'static [&'static str],
    /// The verbs for each of them.
    pub verbs: &'static [&'static str],
}

/// The rights that a feature needs.
#[derive(Clone, Copy, Debug)]
pub struct FeatureRights {
    /// The feature.
    pub subject: &'static str,
    /// The rights in the namespace of agentk.
    pub own: &'static [NeededRights],
    /// The rights in all namespaces, which an agentk with a scope needs in its namespaces only.
    pub everywhere: &'static [NeededRights],
    /// The effect if one is missing, and the remedy: the end of a sentence.
    pub effect: &'static str,
}

/// Asks the API server for the rights that a feature needs. A right that is missing is a warning: the feature may not be wanted.
pub struct RightsCheck {
    kubernetes: KubernetesService,
    namespace: String,
    is_scoped: bool,
    rights: FeatureRights,
}

impl RightsCheck {
    /// Returns the step for a feature.
    pub fn new(context: &CheckContext, rights: FeatureRights) -> Self {
        let CheckContext { kubernetes, namespace, is_scoped } = context;
        Self { kubernetes: kubernetes.clone(), namespace: namespace.clone(), is_scoped: *is_scoped, rights }
    }

    /// Writes the step.
    ///
    /// # Errors
    ///
    /// agentk may not ask for its rights.
    pub async fn check(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        let FeatureRights { own, everywhere, effect, .. } = self.rights;
        let mut missing =
            self.missing(Some(&self.namespace), own).await.map_err(failed("rights", REVIEW_HINT))?;
        if !self.is_scoped {
            missing.extend(self.missing(None, everywhere).await.map_err(failed("rights", REVIEW_HINT))?);
        }
        if missing.is_empty() {
            report.ok("rights", "agentk has them all");
        } else {
            report.warning("rights", format!("agentk may not {}: {effect}", missing.join("; ")));
        }
        Ok(())
    }

    /// Returns the rights that agentk lacks, for people.
    async fn missing(
        &self,
        namespace: Option<&str>,
        rights: &[NeededRights],
    ) -> Result<Vec<String>, ServiceError> {
        let mut missing = Vec::new();
        for NeededRights { group, resources, verbs } in rights {
            for resource in *resources {
                let mut lacking = Vec::new();
                for verb in *verbs {
                    if !self.kubernetes.may_in(namespace, verb, group, resource).await? {
                        lacking.push(*verb);
                    }
                }
                if !lacking.is_empty() {
                    let place = namespace.map(|name| format!(" in {name}")).unwrap_or_default();
                    let dot = if group.is_empty() { "" } else { "." };
                    missing.push(format!("{} {resource}{dot}{group}{place}", lacking.join(", ")));
                }
            }
        }
        Ok(missing)
    }
}

impl FeatureCheck for RightsCheck {
    fn run<'a>(&'a self, cluster_answers: bool, report: &'a mut CheckReport<'_>) -> LocalBoxFuture<'a, ()> {
        async move {
            if cluster_answers {
                report.set_subject(self.rights.subject);
                let result = self.check(report).await;
                report.end(result);
            }
        }
        .boxed_local()
    }
}
