#!/usr/bin/perl
# Stands before dpkg, and before commands that maintainer scripts call. Writes down every moment of an install or a
# removal, and kills the whole step at the wanted one: at a line of dpkg's own status stream, or inside a script.
use strict;
use warnings;
use Fcntl qw(F_SETFD);

my $places = '/run/tripwire';
my ($name) = $0 =~ m{([^/]+)$};
my ($wanted) = read_lines('wanted');
my %times;
$times{ s/ #\d+$//r }++ for read_lines('moments');

sub read_lines {
    open(my $file, '<', "$places/$_[0]") or return ();
    chomp(my @lines = <$file>);
    return @lines;
}

sub write_line {
    open(my $file, '>>', "$places/$_[0]") or die "cannot write $_[0]: $!";
    print $file "$_[1]\n";
}

# From the step itself down to our parent: killed in this order, none of them sees its child end.
sub ancestors {
    my ($pid, @found) = (getppid());
    while ($pid > 1) {
        unshift @found, $pid;
        open(my $stat, '<', "/proc/$pid/stat") or last;
        $pid = (split ' ', <$stat> =~ s/.*\) //r)[1];
    }
    return @found;
}

sub reach {
    my ($moment, @doomed) = @_;
    $moment .= ' #' . ++$times{$moment};
    if (defined $wanted && $moment eq $wanted) {
        kill('-KILL', $_) for @doomed;
        # Now, because systemd ends what is left of a step as soon as its first process is gone.
        write_line('killed', $moment);
        kill('KILL', ancestors());
        kill('KILL', $$);
    }
    write_line('moments', $moment);
}

if ($name ne 'dpkg') {
    if (my $package = $ENV{DPKG_MAINTSCRIPT_PACKAGE}) {
        reach("script: $package $ENV{DPKG_MAINTSCRIPT_NAME} $name");
    }
    $ENV{PATH} =~ s{/usr/local/sbin:}{};
    exec $name, @ARGV;
}
pipe(my $stream, my $end) or die "cannot make a pipe: $!";
fcntl($end, F_SETFD, 0);
my $dpkg = fork() // die "cannot fork: $!";
if (!$dpkg) {
    setpgrp(0, 0);
    close($stream);
    exec '/usr/bin/dpkg', '--status-fd', fileno($end), @ARGV;
}
close($end);
while (my $line = <$stream>) {
    chomp($line);
    reach($line, $dpkg);
}
waitpid($dpkg, 0);
exit($? >> 8 || $? & 127);
