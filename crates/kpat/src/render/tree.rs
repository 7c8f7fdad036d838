//! The lines beside a tree. Deep trees on narrow terminals: the step shrinks first, then the outer lines give way to
//! a mark, so that a name always has room.

/// How wide one level is, and how many levels are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Branches {
    step: usize,
    most_levels: usize,
}

impl Branches {
    /// For a tree of `depth` levels (0: only roots) in `room` columns of which a name gets `name` if possible;
    /// `room` 0: unlimited.
    pub fn fit(depth: usize, room: usize, name: usize) -> Branches {
        if room == 0 {
            return Branches { step: 3, most_levels: usize::MAX };
        }
        let for_lines = room.saturating_sub(name);
        let step = if depth * 3 <= for_lines {
            3
        } else if depth * 2 <= for_lines {
            2
        } else {
            1
        };
        Branches { step, most_levels: (for_lines / step).max(2) }
    }

    /// The lines left of a node. `last[i]`: whether its ancestor at level i + 1 (itself: the last one) is the last child.
    pub fn lines(&self, last: &[bool]) -> String {
        self.draw(last, true)
    }

    /// The lines left of something that hangs beside the tree at this place, not a child.
    pub fn beside(&self, last: &[bool]) -> String {
        self.draw(last, false)
    }

    fn draw(&self, last: &[bool], child: bool) -> String {
        let mut out = String::new();
        let mut levels = last;
        if levels.len() > self.most_levels {
            let mark = format!("{}⋯", levels.len() - self.most_levels);
            let keep = self.most_levels.saturating_sub(mark.chars().count().div_ceil(self.step)).max(1);
            levels = &levels[levels.len() - keep..];
            out.push_str(&mark);
        }
        for (i, &last) in levels.iter().enumerate() {
            let own = child && i + 1 == levels.len();
            out.push_str(match (own, last, self.step) {
                (true, true, 3) => "└─ ",
                (true, false, 3) => "├─ ",
                (false, true, 3) => "   ",
                (false, false, 3) => "│  ",
                (true, true, 2) => "└ ",
                (true, false, 2) => "├ ",
                (false, true, 2) => "  ",
                (false, false, 2) => "│ ",
                (true, true, _) => "└",
                (true, false, _) => "├",
                (false, true, _) => " ",
                (false, false, _) => "│",
            });
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_the_room() {
        assert_eq!(Branches::fit(3, 0, 0).lines(&[false, true, true]), "│     └─ ");
        assert_eq!(Branches::fit(10, 45, 24).lines(&[false, false]), "│ ├ ");
        assert_eq!(Branches::fit(20, 45, 24).lines(&[false, false]), "│├");
        assert_eq!(Branches::fit(2, 45, 24).beside(&[true, false]), "   │  ");
    }

    #[test]
    fn too_deep_is_marked() {
        let lines = Branches::fit(60, 45, 24).lines(&[false; 60]);
        assert!(lines.starts_with("39⋯│"), "{lines}");
        assert!(lines.chars().count() <= 22, "{lines}");
    }
}
