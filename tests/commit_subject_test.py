#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""scripts/commit_subject.py: which subjects pass.

tests/commit_subject_test.py [unittest arguments]
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "commit_subject.py"
sys.path.insert(0, str(SCRIPT.parent))
from commit_subject import problem_of, subject_of  # noqa: E402


class CommitSubject(unittest.TestCase):
    def test_imperatives_pass(self):
        for subject in (
            "Add a check of the folders",
            "Fix",
            "Pass the deadline on",
            "Process records in order",
            "Compress blocks, then bodies",
            "Embed the version",
            "Bring back the old name",
            "Re-use the buffer of the last step",
            "Make S3 uploads smaller",
        ):
            self.assertIsNone(problem_of(subject), subject)

    def test_other_forms_do_not(self):
        for subject in (
            "Added a check",
            "Adds a check",
            "Adding a check",
            "A check of the folders",
            "The check is faster",
            "One check for all",
            "Docs: lines of one width",
            "add a check",
            "cuda_bench times snapshots",
            "Checks that were never run",
            "Add a check.",
            "",
        ):
            self.assertIsNotNone(problem_of(subject), subject)

    def test_72_characters_pass_and_73_do_not(self):
        self.assertIsNone(problem_of("Add " + "x" * 68))
        self.assertIn("73 characters", problem_of("Add " + "x" * 69))

    def test_what_git_writes_passes(self):
        for subject in ("Merge branch 'a' into main", 'Revert "Adds a check"', "fixup! add a check"):
            self.assertIsNone(problem_of(subject), subject)

    def test_comments_of_the_editor_are_no_subject(self):
        self.assertEqual(subject_of("# Please enter the message\n\nAdd a check\n\nIt was never run.\n"), "Add a check")

    def test_the_hook_reads_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            message = pathlib.Path(directory) / "COMMIT_EDITMSG"
            for text, status in (("Add a check\n\nWhy.\n", 0), ("Added a check\n", 1)):
                message.write_text(text, encoding="utf-8")
                result = subprocess.run([sys.executable, SCRIPT, message], capture_output=True, check=False)
                self.assertEqual(result.returncode, status, text)

    def test_a_range_names_the_commits(self):
        with tempfile.TemporaryDirectory() as directory:

            def git(*arguments):
                identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
                subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True)

            git("init")
            for subject in ("Begin", "Add a check", "Added another"):
                git("commit", "--allow-empty", "--no-verify", "--message", subject)
            command = [sys.executable, SCRIPT, "--range", "HEAD~2..HEAD"]
            result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn("Added another", result.stdout)
            self.assertNotIn("Add a check", result.stdout)


if __name__ == "__main__":
    unittest.main()
