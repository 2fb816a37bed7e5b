//! The parts of configuration files: YAML whose errors name file, line and key, and the types of values that several files have.
#![warn(missing_docs)]

mod bounds;
pub mod duration;
mod json_schema;
mod network;
pub mod patterns;
pub mod rfc3339;
pub mod rfc3339_millis;
mod secret;
mod yaml;

pub use self::bounds::{AnyDuration, Rate, Timeout, Within};
pub use self::json_schema::json_schema;
pub use self::network::{AllowedNetworks, Network, is_within};
pub use self::secret::{KeySet, Secret, SecretError, SecretKey};
pub use self::yaml::{
    Budget, ConfigError, DuplicateKeyPolicy, KeyLocations, Location, Options, Spanned, options, parse,
    parse_with_budget, parse_with_options,
};
