# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# How the tests set up programs of others that serve. Sourced after lib.sh.

# nginx_conf DIR ROOT ADDRESS:PORT...: settings, for standard output, of one that keeps its files in DIR and serves
# those of ROOT.
nginx_conf() {
	local dir=$1 root=$2
	shift 2
	cat <<-END
		pid $dir/nginx.pid;
		daemon off;
		worker_processes 1;
		user root;
		events {}
		http {
			access_log off;
			client_body_temp_path $dir/nb; proxy_temp_path $dir/np; fastcgi_temp_path $dir/nf;
			uwsgi_temp_path $dir/nu; scgi_temp_path $dir/ns;
			sendfile on; tcp_nopush on;
			server { $(printf 'listen %s; ' "$@")root $root; }
		}
	END
}

# sshd_conf ADDRESS:PORT HOST_KEY AUTHORIZED: the same, for a server that lets root in with one of the keys in a file.
sshd_conf() {
	cat <<-END
		ListenAddress $1
		HostKey $2
		AuthorizedKeysFile $3
		PermitRootLogin yes
		StrictModes no
		UsePAM no
		PidFile none
		Subsystem sftp internal-sftp
	END
}
