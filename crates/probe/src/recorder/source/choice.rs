//! Whose packets, sockets and time a source records.

use super::Source;
use crate::object::Loaded;
use crate::work::{ChangeChoice, Term};

impl Source {
    /// Who is chosen, from now on; `None`: no choice was asked for, and this is no profile.
    pub(in crate::recorder) fn change_choice(
        &self,
        change: &ChangeChoice,
    ) -> Option<std::io::Result<Vec<Term>>> {
        if let Some(whose) = &self.whose {
            let mut whose = whose.borrow_mut();
            return Some(whose.change(&self.loaded, change).map(|()| whose.choice().terms().to_vec()));
        }
        let mut accounts = self.accounts.as_ref()?.borrow_mut();
        Some(accounts.change_choice(&self.loaded, change).map(|()| accounts.choice().terms().to_vec()))
    }

    /// Its kernel side, if it asks whose packets or sockets are.
    pub(in crate::recorder) fn asks_whose(&self) -> Option<&Loaded> {
        self.whose.as_ref().map(|_| &self.loaded)
    }

    /// Rules about processes are evaluated anew.
    pub(in crate::recorder) fn look_whose(&self) {
        if let Some(whose) = &self.whose {
            whose.borrow_mut().look();
        }
    }
}
