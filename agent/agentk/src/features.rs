//! The list of the features of agentk.
//!
//! A new feature is a line in [`FEATURES`], and one in the list of `log_filter`.

use agentk_core::feature::{CheckContext, FeatureCheck, FeatureDefinition, FeatureOptions};
use agentk_policy::FeatureWrites;
use clap::{ArgMatches, Args, FromArgMatches};

/// All features, in the order in which they are built and checked.
pub(crate) static FEATURES: [FeatureDefinition; 6] = [
    agentk_gitops::DEFINITION,
    agentk_notify::DEFINITION,
    agentk_graph::DEFINITION,
    agentk_cluster_audit::DEFINITION,
    agentk_alerts::DEFINITION,
    agentk_environments::DEFINITION,
];

/// The flags of all features, as they were parsed.
#[derive(Clone, Debug)]
pub struct FeatureFlags(ArgMatches);

/// Returns the features that the flags turn on.
pub(crate) fn enabled_features(
    options: &FeatureOptions<'_>,
) -> impl Iterator<Item = &'static FeatureDefinition> {
    FEATURES.iter().filter(move |feature| (feature.is_enabled)(options))
}

/// Returns the writes of features that a policy must know, also of those that flags turn off: another process may serve them.
pub fn feature_writes() -> FeatureWrites {
    let writing = FEATURES.iter().filter(|feature| feature.writes);
    FeatureWrites {
        services: writing.flat_map(|feature| feature.services.iter().copied()).collect(),
        lease_suffixes: FEATURES.iter().filter_map(|feature| Some(feature.lease?.suffix)).collect(),
    }
}

/// Builds the steps of `agentk check` of the features that the flags turn on. It reads the files that flags name, which blocks.
pub(crate) fn feature_checks(
    options: &FeatureOptions<'_>,
    context: &CheckContext,
) -> anyhow::Result<Vec<Box<dyn FeatureCheck>>> {
    let builds = enabled_features(options).filter_map(|feature| feature.check);
    builds.filter_map(|build| build(options, context).transpose()).collect()
}

impl FeatureFlags {
    /// Returns the options from which features are built.
    pub(crate) fn options(&self, is_configurable: bool) -> FeatureOptions<'_> {
        FeatureOptions { flags: &self.0, is_configurable }
    }
}

impl Args for FeatureFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        FEATURES.iter().fold(command, |command, feature| (feature.flags)(command))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FeatureFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.clone_from(matches);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proto::ServiceName;

    use super::*;

    /// Without them, the admission webhook would refuse the Leases, and no pod would lead.
    #[test]
    fn policy_knows_the_lease_of_each_feature() {
        assert_eq!(feature_writes().lease_suffixes, ["-gitops", "-notify", "-alerts"]);
    }

    #[test]
    fn policy_knows_the_services_that_write() {
        let expected = [ServiceName::GITOPS, ServiceName::NOTIFY, ServiceName::PROVISION];
        assert_eq!(feature_writes().services, expected);
    }
}
