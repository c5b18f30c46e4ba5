//! Users by name.
//!
//! They are looked up when the router starts. Later the look-up could make it wait for another
//! host, and run code that its confinement ends: NSS, which nsswitch.conf(5) describes, may ask any
//! server by any module.

use super::sys;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// The users that were looked up.
#[derive(Debug, Default)]
pub struct Users {
    known: RefCell<BTreeMap<String, u32>>,
    is_closed: Cell<bool>,
}

impl Users {
    /// The number of a user.
    ///
    /// # Errors
    /// In words: there is none, or it is too late to look.
    pub fn number(&self, name: &str) -> Result<u32, String> {
        if let Some(&uid) = self.known.borrow().get(name) {
            return Ok(uid);
        }
        if self.is_closed.get() {
            return Err(
                "names of users are looked up when the router starts: restart it, or write \
                        the user's number"
                    .into(),
            );
        }
        let uid = sys::user(name).map_err(|e| format!("the user can't be looked up: {e}"))?;
        let uid = uid.ok_or("there is no user of this name")?;
        self.known.borrow_mut().insert(name.into(), uid);
        Ok(uid)
    }

    /// Looks nobody up from here on.
    pub(super) fn close(&self) {
        self.is_closed.set(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_by_name_and_nobody_is_looked_up_late() {
        let users = Users::default();
        assert_eq!(users.number("root"), Ok(0));
        for none in ["no-such-user", "", "a\0b"] {
            let why = users.number(none).unwrap_err();
            assert!(why.contains("no user of this name") || none.contains('\0'), "{why}");
        }
        users.close();
        assert_eq!(users.number("root"), Ok(0), "who is known stays known");
        let why = users.number("nobody").unwrap_err();
        assert!(why.contains("restart it"), "{why}");
    }
}
