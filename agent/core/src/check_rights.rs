//! The step of `agentk check` for the rights that a feature needs.

use futures_util::{
    FutureExt as _,
    future::LocalBoxFuture,
    stream::{self, StreamExt as _, TryStreamExt as _},
};

use crate::{
    ServiceError,
    check_report::{CheckReport, REVIEW_HINT, StepError, failed},
    feature::{CheckContext, FeatureCheck},
    services::KubernetesService,
};

/// The rights that the API server is asked for at once.
const AT_ONCE: usize = 8;
/// The most namespaces of a scope for which agentk asks.
const MAX_NAMESPACES: usize = 10;

/// Rights for a resource of an API group.
#[derive(Clone, Copy, Debug)]
pub struct NeededRight {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource, in the plural.
    pub resource: &'static str,
    /// The verbs.
    pub verbs: &'static [&'static str],
}

impl NeededRight {
    /// Returns the right to follow the objects of a resource.
    pub const fn to_watch(group: &'static str, resource: &'static str) -> Self {
        Self { group, resource, verbs: &["list", "watch"] }
    }
}

/// The rights that a feature needs.
#[derive(Clone, Debug)]
pub struct FeatureRights {
    /// The feature.
    pub subject: &'static str,
    /// The rights in the namespace of agentk.
    pub own: &'static [NeededRight],
    /// The rights in all namespaces, which an agentk with a scope needs in its namespaces only.
    pub everywhere: Vec<NeededRight>,
    /// The rights for resources without namespaces, which an agentk with a scope does not need.
    pub cluster: Vec<NeededRight>,
    /// The effect if one is missing, and the remedy: the end of a sentence.
    pub effect: &'static str,
}

/// Asks the API server for the rights that a feature needs. A right that is missing is a warning: the feature may not be wanted.
pub struct RightsCheck {
    kubernetes: KubernetesService,
    namespace: String,
    scope: Option<Vec<String>>,
    rights: FeatureRights,
}

impl RightsCheck {
    /// Returns the step for a feature.
    pub fn new(context: &CheckContext, rights: FeatureRights) -> Self {
        let CheckContext { kubernetes, namespace, scope } = context;
        Self { kubernetes: kubernetes.clone(), namespace: namespace.clone(), scope: scope.clone(), rights }
    }

    /// Writes the step.
    ///
    /// # Errors
    ///
    /// agentk may not ask for its rights.
    pub async fn check(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        let missing = self.missing().await.map_err(failed("rights", REVIEW_HINT))?;
        if missing.is_empty() {
            report.ok("rights", format!("agentk has them all{}", self.checked_part()));
        } else {
            let (missing, effect) = (missing.join("; "), self.rights.effect);
            report.warning("rights", format!("agentk may not {missing}: {effect}"));
        }
        Ok(())
    }

    /// Describes the namespaces that were checked, if there is a choice of them.
    fn checked_part(&self) -> String {
        let scope = self.scope.as_ref().filter(|_| !self.rights.everywhere.is_empty());
        match scope.map(Vec::len) {
            None => String::new(),
            Some(count) if count > MAX_NAMESPACES => {
                format!(" in the first {MAX_NAMESPACES} of the {count} namespaces of --namespaces")
            }
            Some(_) => " in the namespaces of --namespaces".to_owned(),
        }
    }

    /// Returns the rights that agentk lacks, for people.
    async fn missing(&self) -> Result<Vec<String>, ServiceError> {
        let needed = self.needed().into_iter();
        let reviews: Vec<_> = needed.map(|(namespace, right)| self.lacking(namespace, right)).collect();
        let lacking: Vec<Option<String>> = stream::iter(reviews).buffered(AT_ONCE).try_collect().await?;
        Ok(lacking.into_iter().flatten().collect())
    }

    /// Returns the rights with their namespaces. `None` stands for all namespaces, and for resources without one.
    fn needed(&self) -> Vec<(Option<&str>, &NeededRight)> {
        let FeatureRights { own, everywhere, cluster, .. } = &self.rights;
        let own = own.iter().map(|right| (Some(&*self.namespace), right));
        match &self.scope {
            None => own.chain(everywhere.iter().chain(cluster).map(|right| (None, right))).collect(),
            Some(scope) => {
                let namespaces = scope.iter().take(MAX_NAMESPACES);
                let in_scope =
                    namespaces.flat_map(|name| everywhere.iter().map(move |right| (Some(&**name), right)));
                own.chain(in_scope).collect()
            }
        }
    }

    /// Returns the verbs of a right that agentk lacks, for people.
    async fn lacking(
        &self,
        namespace: Option<&str>,
        right: &NeededRight,
    ) -> Result<Option<String>, ServiceError> {
        let NeededRight { group, resource, verbs } = right;
        let mut lacking = Vec::new();
        for verb in *verbs {
            if !self.kubernetes.may_in(namespace, verb, group, resource).await? {
                lacking.push(*verb);
            }
        }
        let place = namespace.map(|name| format!(" in {name}")).unwrap_or_default();
        let dot = if group.is_empty() { "" } else { "." };
        Ok((!lacking.is_empty()).then(|| format!("{} {resource}{dot}{group}{place}", lacking.join(", "))))
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
