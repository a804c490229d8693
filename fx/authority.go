// SPDX-License-Identifier: Apache-2.0

package tierlockfx

import (
	"database/sql"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/tierlock/tierlock/config"
	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/tier/driver"
)

// AuthorityParams is what the authority is made of.
type AuthorityParams struct {
	fx.In

	Config config.Config
	// Pool is the lock's own. The name keeps the pool of the business, which most
	// applications provide without one, from being taken for it.
	Pool    *sql.DB            `name:"tierlock"`
	Logger  *zap.Logger        `optional:"true"`
	Options []mysqlauth.Option `optional:"true"`
}

// AuthorityResult is the authority.
type AuthorityResult struct {
	fx.Out

	Authority driver.Authority
}

// NewAuthority makes the authority. It sends nothing.
func NewAuthority(p AuthorityParams) (AuthorityResult, error) {
	authority, err := mysqlauth.New(p.Pool, append(authorityOptions(p.Config, p.Logger), p.Options...)...)
	if err != nil {
		return AuthorityResult{}, err
	}
	return AuthorityResult{Authority: authority}, nil
}

func authorityOptions(c config.Config, log *zap.Logger) []mysqlauth.Option {
	return []mysqlauth.Option{
		mysqlauth.WithLogger(log), mysqlauth.WithTimeout(c.MySQL.Timeout), mysqlauth.WithMaxOpenConns(c.MySQL.MaxOpenConns),
		mysqlauth.WithSweepInterval(c.Sweep.Every), mysqlauth.WithRetention(c.Sweep.Retention),
	}
}
