// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/tiers"
	"github.com/tierlock/tierlock/tier"
)

// ledger is where holders note, in the database, that they come and that they
// go. AUTO_INCREMENT numbers the notes in the order in which the server met them.
type ledger struct{ db *sql.DB }

const (
	goes    = 0
	comes   = 1
	refused = 2 // for this key
)

func createLedger(t *testing.T, s *tiers.Tiers) {
	t.Helper()
	s.Exec(t, `CREATE TABLE ledger (seq BIGINT AUTO_INCREMENT PRIMARY KEY, lock_key VARBINARY(320) NOT NULL,
		fence BIGINT UNSIGNED NOT NULL, step TINYINT NOT NULL, at DATETIME(6) NOT NULL)`)
}

func openLedger() (*ledger, error) {
	db, err := sql.Open("mysql", setting("dsn"))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	return &ledger{db}, nil
}

// note writes one line for each lease, in one statement.
func (l *ledger) note(step int, leases ...*tier.Lease) error {
	var args []any
	for _, lease := range leases {
		args = append(args, []byte(lease.Key()), lease.Fence(), step)
	}
	return l.write(args)
}

func (l *ledger) noteRefused(key string) error { return l.write([]any{[]byte(key), 0, refused}) }

func (l *ledger) write(args []any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := l.db.ExecContext(ctx, "INSERT INTO ledger (lock_key, fence, step, at) VALUES "+
		strings.TrimSuffix(strings.Repeat("(?, ?, ?, UTC_TIMESTAMP(6)), ", len(args)/3), ", "), args...)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// heldBy counts the leases of a holder that stand by the server's clock.
func (l *ledger) heldBy(holder string) (held int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = l.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM lease WHERE holder = ? AND token IS NOT NULL AND expires_at > UTC_TIMESTAMP(6)",
		[]byte(holder)).Scan(&held)
	if err != nil {
		return 0, fmt.Errorf("held by: %w", err)
	}
	return held, nil
}

func (l *ledger) close() error { return l.db.Close() }

// checkLedger fails the test for a holder that came while another had not gone,
// and for a fence that did not rise.
func checkLedger(t *testing.T, s *tiers.Tiers) {
	t.Helper()
	for what, condition := range map[string]string{
		"holders came while another had not gone":         "step = 1 AND step_before = 1",
		"notes of going do not follow the note of coming": "step = 0 AND (step_before IS NULL OR step_before = 0 OR fence <> fence_before)",
		"holders came with a fence not above the last":    "step = 1 AND fence <= fence_before",
	} {
		n := s.Count(t, `SELECT COUNT(*) FROM (SELECT fence, step, LAG(fence) OVER w AS fence_before, LAG(step) OVER w AS step_before
			FROM ledger WHERE step < 2 WINDOW w AS (PARTITION BY lock_key ORDER BY seq)) l WHERE `+condition)
		if n != 0 {
			t.Errorf("ledger: %d %s", n, what)
		}
	}
	if n := s.Count(t, "SELECT COUNT(*) FROM ledger"); n < 100 {
		t.Errorf("%d notes in the ledger: too little happened", n)
	}
}

// longestIdle returns for how long nobody came to a key that somebody wanted, as
// who came next says, or who was refused after the wait given.
func longestIdle(t *testing.T, s *tiers.Tiers, wait time.Duration) time.Duration {
	t.Helper()
	return time.Duration(s.Count(t, `SELECT COALESCE(MAX(CASE
			WHEN before_it IS NOT NULL THEN TIMESTAMPDIFF(MICROSECOND, before_it, at)
			WHEN step = 2 THEN ? END), 0)
		FROM (SELECT step, at, LAG(at) OVER (PARTITION BY lock_key ORDER BY seq) AS before_it
			FROM ledger WHERE step > 0) l`, wait.Microseconds())) * time.Microsecond
}
