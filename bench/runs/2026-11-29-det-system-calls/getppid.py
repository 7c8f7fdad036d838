import subprocess, os, sys, time, tempfile, signal
K=os.environ["KPAT"]; d=tempfile.mkdtemp()
C=r'''
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(void){struct timespec a,b;int n=20000;for(int i=0;i<2000;i++)syscall(SYS_getppid);clock_gettime(CLOCK_THREAD_CPUTIME_ID,&a);for(int i=0;i<n;i++)syscall(SYS_getppid);clock_gettime(CLOCK_THREAD_CPUTIME_ID,&b);
printf("%.1f\n",((b.tv_sec-a.tv_sec)*1e9+b.tv_nsec-a.tv_nsec)/n);}'''
open(d+"/c.c","w").write(C); subprocess.run(["gcc","-O1","-o",d+"/c",d+"/c.c"],check=True)
run=lambda: [float(subprocess.run([d+"/c"],capture_output=True,text=True).stdout) for i in range(3)]
print(os.uname().release,"nothing",run(),flush=True)
for more in ([],["--rate","0"]):
    rec=subprocess.Popen([K,"record","-p","profile","--no-cost",*more,"-o",d+"/r.kbl","--force","--ready-file",d+"/ready"],stderr=subprocess.DEVNULL)
    while not os.path.exists(d+"/ready"): time.sleep(.05)
    print("profile",more,run(),flush=True)
    rec.send_signal(signal.SIGINT); rec.wait(); os.unlink(d+"/ready")
